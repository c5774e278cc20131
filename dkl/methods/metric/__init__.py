"""A learned metric of the rows, from the gradients of a kernel model: what learners with `metric=` share."""
