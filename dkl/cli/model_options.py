"""The options of `fit` and `plan` that say which features and which machine, and the estimator they describe."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dkl.cli.cluster import Compute
from dkl.cli.command import Running
from dkl.registry import LEARNERS, learner_entry, learner_keys

if TYPE_CHECKING:
    from dkl.features.families import Family
    from dkl.machines.machine import KernelMachine
    from dkl.methods.base import FeatureLearner

    LearnerName = str
else:
    # The names that the shell completes and checks are those of the registry.
    LearnerName = Literal[("auto", *learner_keys(), "tuned")]
FamilyName = Literal["gaussian", "laplacian", "cauchy", "matern", "arc-cosine", "coordinates", "harmonics"]
# The panels of the help: thirty options in one list would be unreadable.
FEATURES, CANDIDATES, FAMILY, MACHINE = "Features", "Candidates", "Family", "Linear model"
# Columns of the mapped rows, for learners that are named without a number.
_FEATURES = 1_000
# Options about features that the machine has, too, whatever features it chooses.
KNOBS = ("features", "scaling", "sigma")
# The parameters that an option gives, where they have other names than the option.
_PARAMETERS = {
    "learner": ("features",),
    "features": ("n_features", "n_landmarks"),
    "candidates": ("n_candidates",),
    "sigma": ("sigma", "family"),
    "alpha": ("alpha", "lam"),
    "seed": ("random_state",),
} | dict.fromkeys(("nu", "order", "degree", "sampling", "pairing"), ("family",))
# Losses that no labels have,
# spelled out, since a typing error is answered before NumPy is loaded; a test compares them
OF_NUMBERS = ("poisson", "gamma", "huber", "pinball", "epsilon_insensitive")


@dataclass(frozen=True)
class FeatureOptions:
    """Which features are learned."""

    learner: Annotated[
        LearnerName,
        typer.Option(
            help="How features are found: auto judges several kinds on held-out rows; or drawn, chosen, searched for, "
            "weighed with the machine (tuned). Options about candidates and families alone are of aligned.",
            rich_help_panel=FEATURES,
        ),
    ] = "auto"
    features: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Columns of the mapped rows, at most.",
            rich_help_panel=FEATURES,
            show_default="by the rows, or 1,000",
        ),
    ] = None
    scaling: Annotated[
        Literal["standard", "minmax", "unit", "quantile", "counts", "none"] | None,
        typer.Option(
            help="Scaling of the columns before anything else; quantile for heavy tails, counts for counts of words.",
            rich_help_panel=FEATURES,
            show_default="by the rows, or standard but for sparse rows",
        ),
    ] = None
    max_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Learn the features on this many rows only.", rich_help_panel=FEATURES),
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
        typer.Option(
            help="Bandwidth: a number, or 'median'.", rich_help_panel=FEATURES, show_default="by the rows, or median"
        ),
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
        typer.Option(help="Two columns a frequency, or one with a phase.", rich_help_panel=FAMILY),
    ] = "cos-sin"


@dataclass(frozen=True)
class MachineOptions:
    """The linear model on the features."""

    loss: Annotated[
        str | None,
        typer.Option(
            help="hinge, squared_hinge, log_loss, softmax, modified_huber; for numbers squared_error, "
            "epsilon_insensitive, huber, pinball, poisson, gamma.",
            rich_help_panel=MACHINE,
        ),
    ] = None
    task: Annotated[
        Literal["classification", "regression"] | None,
        typer.Option(
            help="Labels or numbers: whole numbers may be either, and counts are numbers.",
            rich_help_panel=MACHINE,
            show_default="as ingested; numbers for a loss of numbers alone",
        ),
    ] = None
    epsilon: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Of --loss huber and epsilon_insensitive: the error, in deviations of the target, from which on they "
            "are straight, or up to which they are 0.",
            rich_help_panel=MACHINE,
            show_default="0.1",
        ),
    ] = None
    quantiles: Annotated[
        str | None,
        typer.Option(
            metavar="Q,Q,...",
            help="Of --loss pinball: the quantiles to predict.",
            rich_help_panel=MACHINE,
            show_default="0.1,0.5,0.9",
        ),
    ] = None
    alpha: Annotated[
        str | None,
        typer.Option(
            help="Strength of the ridge; auto (held-out rows) or evidence (numbers) with --solver newton.",
            rich_help_panel=MACHINE,
        ),
    ] = None
    epochs: Annotated[
        int | None, typer.Option(min=1, help="How often all rows are read for the fit.", rich_help_panel=MACHINE)
    ] = None
    solver: Annotated[
        Literal["sgd", "newton"] | None,
        typer.Option(
            help="Stochastic steps, or exact Newton steps for a few thousand features "
            "(the default of auto, peaks, margin, steps and nystrom, with --alpha auto).",
            rich_help_panel=MACHINE,
        ),
    ] = None
    early_stopping: Annotated[
        bool, typer.Option("--early-stopping", help="Stop when held-out rows gain no more.", rich_help_panel=MACHINE)
    ] = False
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Probabilities for any loss, in one more pass.", rich_help_panel=MACHINE)
    ] = False
    conformal_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of the rows that the fit does not see, so that dkl predict --interval keeps its promise.",
            rich_help_panel=MACHINE,
        ),
    ] = None
    class_weight: Annotated[
        Literal["balanced"] | None, typer.Option(help="Give each class the same weight.", rich_help_panel=MACHINE)
    ] = None
    effort: Annotated[
        Literal["fast", "balanced", "best"] | None,
        typer.Option(
            help="How much work auto may take to choose: about 1, 5 and at most some hundred seconds on usual tables.",
            rich_help_panel=MACHINE,
            show_default="balanced",
        ),
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds, from 10 on, that auto may take; else no clock decides anything.", rich_help_panel=MACHINE
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="The same seed gives the same model, bit for bit.")] = 0
    set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Any other parameter of the estimator, for example patience=3 or features__k=3. May be repeated.",
        ),
    ] = None

    @property
    def penalty(self) -> float | str | None:
        """The value of --alpha, "auto", "evidence" or a number, or an error that names the option."""
        if self.alpha in (None, "auto", "evidence"):
            return self.alpha
        try:
            return float(self.alpha)
        except ValueError:
            raise typer.BadParameter(
                f"--alpha is {self.alpha!r}; it must be a positive number, 'auto' or 'evidence'"
            ) from None

    @property
    def shares(self) -> tuple[float, ...] | None:
        """The value of --quantiles, or an error that names the option."""
        try:
            return None if self.quantiles is None else tuple(float(part) for part in self.quantiles.split(","))
        except ValueError:
            raise typer.BadParameter(
                f"--quantiles is {self.quantiles!r}; it must be numbers between 0 and 1, such as 0.1,0.5,0.9"
            ) from None

    @property
    def settings(self) -> dict[str, Any]:
        """The NAME=VALUE pairs of --set; values are JSON, anything else is taken as text."""
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
                # Texts need no quotes: `--set loss=hinge` is what people type.
                settings[name] = text
        return settings


def family_from(options: FeatureOptions) -> Family:
    """The family that the options name."""
    from dkl.features.families import ArcCosine, Cauchy, Coordinates, Gaussian, Laplacian, Matern
    from dkl.features.harmonics import SphericalHarmonics

    # Parameters that the families of shift-invariant kernels share.
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
    """The value of --sigma, "median" or a number, or an error that names the option."""
    if text == "median":
        return "median"
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"--sigma is {text!r}; it must be a positive number or 'median'") from None


def learner_from(
    options: FeatureOptions, *, seed: int, task: str | None, compute: Compute, running: Running
) -> FeatureLearner | None:
    """The feature learner that the options describe, not yet fitted; None where the machine is to choose."""
    if options == FeatureOptions(**{name: getattr(options, name) for name in KNOBS}):
        return None
    return named_learner(options, seed=seed, task=task, compute=compute, running=running)


def named_learner(
    options: FeatureOptions, *, seed: int, task: str | None, compute: Compute, running: Running
) -> FeatureLearner:
    """The feature learner that the options describe, chosen waves where they name none; not yet fitted."""
    from dkl.methods.density.learner import TunedClassifier, TunedRegressor

    # What is said of candidates and families alone describes chosen waves, as the shell has always taken it.
    name, size = "aligned" if options.learner == "auto" else options.learner, options.features or _FEATURES
    given = {
        "rho": options.rho,
        "beta": options.beta,
        "n_candidates": options.candidates,
        "max_rows": options.max_rows,
        "memory_limit": compute.memory_limit,
    }
    # Tuned machines are learners of their own, one for each task, and no entry of the registry.
    learner_class: type[FeatureLearner]
    if name == "tuned":
        learner_class = TunedRegressor if task == "regression" else TunedClassifier
    else:
        learner_class = learner_entry(name).learner_class
    known = learner_class().get_params(deep=False)
    parameters = _given(given)
    # An option that the learner does not have would be ignored without a word, so it is refused.
    for parameter in parameters:
        if parameter not in known:
            option = parameter.removeprefix("n_").replace("_", "-")
            raise typer.BadParameter(f"--{option} has no meaning for --learner {name}")
    # These learners have a default of their own: all candidates of the joint problem are solved for, and coordinates
    # are counted.
    has_default = name in ("landmarks", "leverage", "joint") or options.family == "coordinates"
    if "n_candidates" in known and options.candidates is None and not has_default:
        parameters["n_candidates"] = 20 * size
    # Every landmark becomes a column, so for that learner the number of features is the number of landmarks.
    parameters["n_landmarks" if "n_landmarks" in known else "n_features"] = size
    # steps have neither a family of waves nor a scale, and landmarks have a kernel of their own
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


def knobs_from(options: FeatureOptions) -> dict[str, Any]:
    """The options about features that were given to a machine which chooses the rest, as its parameters."""
    given = {
        "n_features": options.features,
        "sigma": None if options.sigma is None else _bandwidth(options.sigma),
    }
    # None is a scaling of its own, so that it cannot stand for one that was not given.
    scaling = {} if options.scaling is None else {"scaling": None if options.scaling == "none" else options.scaling}
    return _given(given) | scaling


def estimator_from(
    features: FeatureOptions, options: MachineOptions, *, task: str | None, compute: Compute, running: Running
) -> FeatureLearner | KernelMachine:
    """The kernel machine on the features that are described, or the learner itself where it is one; not yet fitted.

    Where they are left open the machine has the defaults that it has in Python: it chooses features, solver, loss and
    penalty.
    """
    from dkl.linear.newton import NEWTON_LOSSES
    from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
    from dkl.machines.settings import squared_loss
    from dkl.methods.density.tuned_learner import TunedLearner

    given = {name: value for name, value in vars(options).items() if name not in ("task", "seed", "set")}
    given |= {"quantiles": options.shares, "alpha": options.penalty}
    given |= {name: given[name] or None for name in ("early_stopping", "calibrate")}
    given |= {"device": compute.device, "memory_limit": compute.memory_limit}
    if task is None:
        raise ValueError("the store has no target; ingest it with --target NAME to fit a model")
    # whole numbers are taken for labels when they are ingested, and counts are whole numbers
    task = options.task or ("regression" if options.loss in OF_NUMBERS else task)
    for name, losses in (("epsilon", ("huber", "epsilon_insensitive")), ("quantiles", ("pinball",))):
        if getattr(options, name) is not None and options.loss not in losses:
            raise typer.BadParameter(f"--{name} is of --loss {' and '.join(losses)}; give one of them, or leave it out")
    learner = learner_from(features, seed=options.seed, task=task, compute=compute, running=running)
    estimator: FeatureLearner | KernelMachine
    if isinstance(learner, TunedLearner):
        # Tuned machines call the ridge of their linear model lam, as their paper does.
        given["lam"] = given.pop("alpha")
        estimator, parameters = learner, _given(given)
    else:
        machine = KernelClassifier if task == "classification" else KernelRegressor
        estimator = machine(random_state=options.seed, progress=running.progress)
        estimator.set_params(**({"features": learner} if learner is not None else knobs_from(features)))
        parameters = _given(given)
        loss = squared_loss(task)
        wants_exact = any(entry.exact_head and isinstance(learner, entry.learner_class) for entry in LEARNERS)
        # Few, strong columns suit Newton steps with a penalty chosen on held-out rows, unless an option that was given
        # has a meaning for stochastic steps alone or names another loss.
        is_stochastic = {"epochs", "early_stopping"} & set(parameters) or parameters.get("solver") == "sgd"
        exact = NEWTON_LOSSES if task == "regression" else (loss,)
        if wants_exact and not is_stochastic and parameters.get("loss", loss) in exact:
            parameters = {"solver": "newton", "loss": loss, "alpha": "auto", **parameters}
        elif parameters.get("loss") in ("pinball", "poisson", "gamma") and not is_stochastic:
            # these are fitted by Newton steps whatever the features are, unless stochastic ones are asked for
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
    """Refuse --set NAME=VALUE beside the option that gives the same parameter: one of both would be ignored."""
    for group in options:
        # what learns the features is a parameter of the machine, with parameters of its own
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
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}
