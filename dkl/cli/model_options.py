"""The options of `fit` and `plan` for features and machines, and the estimator that they describe."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from dkl.cli.cluster import Compute
from dkl.cli.command import Running
from dkl.registry import LEARNERS, LOSSES, PENALTY_RULES, learner_entry, learner_keys, losses_for, losses_with

if TYPE_CHECKING:
    from dkl.features.families import Family
    from dkl.machines.kernel_machines import KernelMachine
    from dkl.methods.base import FeatureLearner

    LearnerName = str
    LossName = str
else:
    # typer checks and completes the names of the registry
    LearnerName = Literal[("auto", *learner_keys(), "tuned")]
    LossName = Literal[tuple(LOSSES)]
FamilyName = Literal["gaussian", "laplacian", "cauchy", "matern", "arc-cosine", "coordinates", "harmonics"]
# Rows of the registry's tables in the help of options.
_WITH_EPSILON = "; ".join(f"{name}: {LOSSES[name].formula}" for name in losses_with("epsilon"))
_RULES = "; ".join(f"{name}: {rule.description}" for name, rule in PENALTY_RULES.items())
# Titles of panels of options in the help, for options that have another one than their group.
CANDIDATES, FAMILY = "Candidates", "Family"
# Default number of columns of the mapped rows, for named learners.
_FEATURES = 1_000
# Options about features that are also parameters of a machine that chooses its features.
KNOBS = ("features", "scaling", "sigma")
# The parameters that an option sets, if their names differ from the option's.
_PARAMETERS = {
    "learner": ("features",),
    "features": ("n_features", "n_landmarks"),
    "candidates": ("n_candidates",),
    "sigma": ("sigma", "family"),
    "alpha": ("alpha", "lam"),
    "seed": ("random_state",),
} | dict.fromkeys(("nu", "order", "degree", "sampling", "pairing"), ("family",))


@dataclass(frozen=True)
class FeatureOptions:
    """Options for the features."""

    panel: ClassVar[str] = "Features"

    learner: Annotated[
        LearnerName,
        typer.Option(
            help="How features are chosen: auto compares several kinds on held-out rows; others are drawn, selected, "
            "searched for, or weighed with the machine (tuned). Options about candidates and families without a "
            "learner choose aligned."
        ),
    ] = "auto"
    features: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Largest number of columns of the mapped rows.",
            show_default="by the rows, or 1,000",
        ),
    ] = None
    scaling: Annotated[
        Literal["standard", "minmax", "unit", "quantile", "counts", "none"] | None,
        typer.Option(
            help="Scaling of the columns before anything else; quantile for heavy tails, counts for counts of words.",
            show_default="by the rows, or standard but for sparse rows",
        ),
    ] = None
    max_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Number of rows to learn the features from."),
    ] = None
    candidates: Annotated[
        int | None,
        typer.Option(
            min=1, help="Frequencies to choose from (default: 20 for each column).", rich_help_panel=CANDIDATES
        ),
    ] = None
    rho: Annotated[
        float | None,
        typer.Option(
            help="Selectivity of --learner aligned and joint (default: 0.005 of the candidates).",
            rich_help_panel=CANDIDATES,
        ),
    ] = None
    beta: Annotated[
        float | None, typer.Option(help="Selectivity of --learner posterior and landmarks.", rich_help_panel=CANDIDATES)
    ] = None
    family: Annotated[
        FamilyName, typer.Option(help="The kernel whose features are the candidates.", rich_help_panel=FAMILY)
    ] = "gaussian"
    sigma: Annotated[
        str | None,
        typer.Option(help="Bandwidth: a number, or 'median'.", show_default="by the rows, or median"),
    ] = None
    nu: Annotated[float, typer.Option(help="Smoothness of --family matern.", rich_help_panel=FAMILY)] = 1.5
    order: Annotated[int, typer.Option(help="Order of --family arc-cosine: 0, 1 or 2.", rich_help_panel=FAMILY)] = 1
    degree: Annotated[
        int | None,
        typer.Option(min=0, help="Highest degree of --family harmonics.", rich_help_panel=FAMILY),
    ] = None
    sampling: Annotated[
        Literal["iid", "orthogonal", "structured"],
        typer.Option(help="How frequencies are drawn; structured for large pools.", rich_help_panel=FAMILY),
    ] = "iid"
    pairing: Annotated[
        Literal["cos-sin", "phase"],
        typer.Option(help="Two columns for each frequency, or one with a phase.", rich_help_panel=FAMILY),
    ] = "cos-sin"


@dataclass(frozen=True)
class MachineOptions:
    """Options for the linear model on the features."""

    panel: ClassVar[str] = "Linear model"

    loss: Annotated[
        LossName | None,
        typer.Option(
            metavar="NAME",
            help=f"The loss of a row. Of labels: {', '.join(losses_for('classification'))}; of numbers: "
            f"{', '.join(losses_for('regression'))}.",
        ),
    ] = None
    task: Annotated[
        Literal["classification", "regression"] | None,
        typer.Option(
            help="Labels or numbers: whole numbers may be either, and counts are numbers.",
            show_default="as ingested; numbers for a loss of numbers alone",
        ),
    ] = None
    epsilon: Annotated[
        float | None,
        typer.Option(
            min=0,
            help=f"In standard deviations of the target, epsilon of --loss {_WITH_EPSILON}.",
            show_default="0.1",
        ),
    ] = None
    quantiles: Annotated[
        str | None,
        typer.Option(
            metavar="Q,Q,...",
            help=f"The quantiles to predict, for --loss {' and '.join(losses_with('quantiles'))}.",
            show_default="0.1,0.5,0.9",
        ),
    ] = None
    alpha: Annotated[
        str | None,
        typer.Option(
            help=f"Strength of the ridge. With --solver newton also {_RULES}; or evidence (numbers): the one with the "
            "largest marginal likelihood."
        ),
    ] = None
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of passes over all rows for the fit.")] = None
    solver: Annotated[
        Literal["sgd", "newton"] | None,
        typer.Option(
            help="Stochastic steps, or exact Newton steps for a few thousand features "
            "(the default of auto, peaks, margin, steps and nystrom, with --alpha auto)."
        ),
    ] = None
    early_stopping: Annotated[
        bool,
        typer.Option("--early-stopping", help="Stop when the score on held-out rows no longer improves."),
    ] = False
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Probabilities for any loss, in one more pass.")] = (
        False
    )
    conformal_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of the rows to hold out of the fit, on which the coverage of dkl predict --interval is based."
        ),
    ] = None
    class_weight: Annotated[Literal["balanced"] | None, typer.Option(help="Give each class the same weight.")] = None
    effort: Annotated[
        Literal["fast", "balanced", "best"] | None,
        typer.Option(
            help="Amount of work of auto for its choice: about 1, 3 and up to some hundred seconds for usual tables.",
            show_default="balanced",
        ),
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Time limit of auto in seconds, after its first trial; without it, no result depends on the clock."
        ),
    ] = None
    seed: Annotated[
        int, typer.Option(help="The same seed gives the same model, bit for bit.", rich_help_panel="Options")
    ] = 0
    set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Any other parameter of the estimator, for example patience=3 or features__k=3. May be repeated.",
            rich_help_panel="Options",
        ),
    ] = None

    @property
    def penalty(self) -> float | str | None:
        """The value of --alpha: a number or the name of a rule; BadParameter for other texts."""
        if self.alpha is None:
            return None
        try:
            return float(self.alpha)
        except ValueError:
            if self.alpha in (*PENALTY_RULES, "evidence"):
                return self.alpha
            rules = ", ".join(map(repr, PENALTY_RULES))
            raise typer.BadParameter(
                f"--alpha is {self.alpha!r}; it must be a positive number, {rules} or 'evidence'"
            ) from None

    @property
    def known_task(self) -> Literal["classification", "regression"] | None:
        """The value of --task, or regression for a loss of numbers alone; None where the options leave it open."""
        is_of_numbers = self.loss in losses_for("regression") and self.loss not in losses_for("classification")
        return self.task or ("regression" if is_of_numbers else None)

    @property
    def shares(self) -> tuple[float, ...] | None:
        """The value of --quantiles; BadParameter if it is not a list of numbers."""
        try:
            return None if self.quantiles is None else tuple(float(part) for part in self.quantiles.split(","))
        except ValueError:
            raise typer.BadParameter(
                f"--quantiles is {self.quantiles!r}; it must be numbers between 0 and 1, such as 0.1,0.5,0.9"
            ) from None

    @property
    def settings(self) -> dict[str, Any]:
        """The NAME=VALUE pairs of --set; values are parsed as JSON if possible, and are texts otherwise."""
        settings: dict[str, Any] = {}
        for pair in self.set or []:
            name, equals, text = pair.partition("=")
            if not equals:
                raise typer.BadParameter(f"--set takes NAME=VALUE, not {pair!r}")
            if name in settings:
                raise typer.BadParameter(f"--set {name}=... is given more than once; give it once")
            try:
                settings[name] = json.loads(text)
            except json.JSONDecodeError:
                # so that texts need no quotes: `--set loss=hinge`
                settings[name] = text
        return settings


def family_from(options: FeatureOptions) -> Family:
    """The family that the options describe."""
    from dkl.features.families import ArcCosine, Cauchy, Coordinates, Gaussian, Laplacian, Matern
    from dkl.features.harmonics import SphericalHarmonics

    # the common parameters of families of shift-invariant kernels
    spread: dict[str, Any] = {
        "sigma": _bandwidth(options.sigma or "median"),
        "sampling": options.sampling,
        "pairing": options.pairing,
    }
    families: dict[FamilyName, Family] = {
        "gaussian": Gaussian(**spread),
        "laplacian": Laplacian(**spread),
        "cauchy": Cauchy(**spread),
        "matern": Matern(options.nu, **spread),
        "arc-cosine": ArcCosine(options.order, sampling=options.sampling),
        "coordinates": Coordinates(),
        "harmonics": SphericalHarmonics(options.degree),
    }
    return families[options.family]


def _bandwidth(text: str) -> float | str:
    """The value of --sigma: "median" or a number; BadParameter for other texts."""
    if text == "median":
        return "median"
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"--sigma is {text!r}; it must be a positive number or 'median'") from None


def named_learner(
    options: FeatureOptions, *, seed: int, task: str | None, compute: Compute, running: Running
) -> FeatureLearner:
    """The unfitted feature learner that the options describe; "aligned" if they do not name one."""
    from dkl.methods.density.learner import TunedClassifier, TunedRegressor

    # without --learner, options about candidates or families choose the learner "aligned", as in earlier releases
    name, size = "aligned" if options.learner == "auto" else options.learner, options.features or _FEATURES
    given = {
        "rho": options.rho,
        "beta": options.beta,
        "n_candidates": options.candidates,
        "max_rows": options.max_rows,
        "memory_limit": compute.memory_limit,
    }
    # tuned machines, one class for each task, are not in the registry of learners
    learner_class: type[FeatureLearner]
    if name == "tuned":
        learner_class = TunedRegressor if task == "regression" else TunedClassifier
    else:
        learner_class = learner_entry(name).learner_class
    known = learner_class().get_params(deep=False)
    parameters = _given(given)
    # options that the learner does not have would have no effect, and are errors
    for parameter in parameters:
        if parameter not in known:
            option = parameter.removeprefix("n_").replace("_", "-")
            raise typer.BadParameter(f"--{option} has no meaning for --learner {name}")
    # these learners have their own default number of candidates, and coordinates have a fixed number
    has_default = name in ("landmarks", "leverage", "joint") or options.family == "coordinates"
    if "n_candidates" in known and options.candidates is None and not has_default:
        parameters["n_candidates"] = 20 * size
    # each landmark is a column, so that the number of features is the number of landmarks
    parameters["n_landmarks" if "n_landmarks" in known else "n_features"] = size
    # steps and landmarks have no family
    if "family" in known:
        parameters["family"] = family_from(options)
    if "scaling" in known:
        parameters["scaling"] = None if options.scaling == "none" else options.scaling or "auto"
    return learner_class(
        device=compute.device,
        random_state=seed,
        progress=running.progress,
        **parameters,
    )


def estimator_from(
    features: FeatureOptions, options: MachineOptions, *, task: str | None, compute: Compute, running: Running
) -> FeatureLearner | KernelMachine:
    """The unfitted kernel machine on the features that the options describe; for "tuned" the learner itself.

    Without options the machine has the defaults of Python: it chooses features, solver, loss and penalty.
    """
    from dkl.linear.fitting import NEWTON_LOSSES
    from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
    from dkl.machines.settings import EXACT_BY_DEFAULT, squared_loss
    from dkl.methods.density.learner import TunedLearner

    given = {name: value for name, value in vars(options).items() if name not in ("task", "seed", "set")}
    given |= {"quantiles": options.shares, "alpha": options.penalty}
    given |= {name: given[name] or None for name in ("early_stopping", "calibrate")}
    given |= {"device": compute.device, "memory_limit": compute.memory_limit}
    if task is None:
        raise ValueError("the store has no target; ingest it with --target NAME to fit a model")
    # ingest takes whole numbers for labels, also if they are counts
    task = options.known_task or task
    for name, losses in ((name, losses_with(name)) for name in ("epsilon", "quantiles")):
        if getattr(options, name) is not None and options.loss not in losses:
            raise typer.BadParameter(f"--{name} is of --loss {' and '.join(losses)}; give one of them, or leave it out")
    seed, learner = options.seed, None
    if features != FeatureOptions(**{name: getattr(features, name) for name in KNOBS}):
        learner = named_learner(features, seed=seed, task=task, compute=compute, running=running)
    estimator: FeatureLearner | KernelMachine
    if isinstance(learner, TunedLearner):
        # tuned machines name the ridge penalty lam, as their paper does
        given["lam"] = given.pop("alpha")
        estimator, parameters = learner, _given(given)
    else:
        machine = KernelClassifier if task == "classification" else KernelRegressor
        sigma = None if features.sigma is None else _bandwidth(features.sigma)
        own: dict[str, Any] = (
            {"features": learner} if learner is not None else _given({"n_features": features.features, "sigma": sigma})
        )
        # None is a valid scaling, so that an option that was not given must be left out
        if learner is None and features.scaling is not None:
            own["scaling"] = None if features.scaling == "none" else features.scaling
        estimator = machine(random_state=seed, progress=running.progress, **own)
        parameters = _given(given)
        loss = squared_loss(task)
        wants_exact = any(entry.exact_head and isinstance(learner, entry.learner_class) for entry in LEARNERS)
        # for few, strong columns Newton steps with a penalty chosen on held-out rows, unless a given option applies to
        # stochastic steps only, or is another loss
        is_stochastic = {"epochs", "early_stopping"} & set(parameters) or parameters.get("solver") == "sgd"
        exact = NEWTON_LOSSES if task == "regression" else (loss,)
        if wants_exact and not is_stochastic and parameters.get("loss", loss) in exact:
            parameters = {"solver": "newton", "loss": loss, "alpha": "auto", **parameters}
        elif parameters.get("loss") in EXACT_BY_DEFAULT and not is_stochastic:
            # these losses have Newton steps for any features, unless stochastic steps are chosen
            parameters = {"alpha": "auto", **parameters}
    settings = options.settings
    _check_given_once(settings, features, options, compute)
    parameters |= settings
    known = estimator.get_params(deep=True)
    for name in parameters:
        if name not in known:
            raise typer.BadParameter(
                f"{type(estimator).__name__} has no parameter {name!r}; it has {', '.join(sorted(known))}"
            )
    return estimator.set_params(**parameters)


def _check_given_once(settings: dict[str, Any], *options: FeatureOptions | MachineOptions | Compute) -> None:
    """Raise BadParameter if --set and another option set the same parameter."""
    for group in options:
        # parameters of the feature learner have the prefix features__ if it is a parameter of a machine
        prefixes = ("",) if isinstance(group, MachineOptions) else ("", "features__")
        for option in fields(group):
            if getattr(group, option.name) == option.default:
                continue
            for parameter in _PARAMETERS.get(option.name, (option.name,)):
                for name in (f"{prefix}{parameter}" for prefix in prefixes):
                    if name in settings:
                        given = f"--{option.name.replace('_', '-')}"
                        raise typer.BadParameter(f"{given} and --set {name}=... give the same parameter; give one")


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
