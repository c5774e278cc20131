"""Parts that all pictures share: matplotlib when it is needed, the colours, a new figure, saving."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from dkl.data.store.outputs import FileKind, check_file, written_whole
from dkl.plain_text import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text
else:
    # matplotlib is imported when something is drawn
    Axes = Any

# Okabe & Ito 2008: colours that people with any kind of colour vision can tell apart; the first two are farthest apart.
CLASS_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
RESOLUTION = 240
# of every panel, whatever the style of the program
_STYLE = {"axes.titlesize": "medium", "legend.fontsize": "small", "legend.frameon": False}


def class_colour(place: int) -> str:
    """The colour of a class, output or curve; they begin again after eight."""
    return CLASS_COLOURS[place % len(CLASS_COLOURS)]


def pyplot() -> Any:
    """matplotlib.pyplot.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        # Numbers of a display are there without matplotlib; only drawing needs it.
        raise ImportError("a picture needs matplotlib, which is not installed: pip install 'dkl[plots]'") from error
    return plt


def diverging(span: float = 1.0) -> Any:
    """A colour map from the first class's colour over white to the second's; its middle share `span` of strengths."""
    pyplot()
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap

    dark_first, dark_second = "#00507d", "#983f00"
    stops = [dark_first, CLASS_COLOURS[0], "#8fc1e0", "#ffffff", "#f2b48c", CLASS_COLOURS[1], dark_second]
    # White in the middle is 0; the classes' own colours stand at a third of the way to the ends, which are darker.
    colours = LinearSegmentedColormap.from_list("dkl", stops)
    return ListedColormap(colours(np.linspace(0.5 - 0.5 * span, 0.5 + 0.5 * span, 256)))


def _is_picture(path: Path) -> bool:
    """Whether Matplotlib has drawn a file: PNG, SVG, PDF and PostScript say so in their first lines or last."""
    drawn = path.read_bytes()
    return drawn.startswith((b"\x89PNG", b"<?xml", b"%PDF", b"%!PS")) and b"matplotlib" in drawn.lower()


_PICTURE = FileKind("picture", _is_picture)


class Display:
    """A picture whose data are attributes; a subclass says what `_draw` puts into one Axes.

    Attributes
    ----------
    figure_ : matplotlib Figure
        After `plot`.
    axes_ : list of matplotlib Axes
        After `plot`.
    """

    figure_: Any
    axes_: list[Axes]
    _size = (4.4, 4.2)
    # further options of `panels`
    _layout: ClassVar[Mapping[str, Any]] = {}
    # whether the `title` stands above all panels
    _is_titled = False

    def plot(self, ax: Axes | Sequence[Axes] | None = None) -> Self:
        """Draw into `ax`, or into a new figure.

        Parameters
        ----------
        ax : matplotlib Axes, sequence of them (one a panel), or None

        Returns
        -------
        self
            With `figure_` and `axes_`.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If there are not as many Axes as panels.
        """
        axes: list[Axes] = self._new_axes() if ax is None else list(np.ravel(np.asarray(ax, dtype=object)))
        if len(axes) != self._n_panels:
            raise ValueError(f"ax holds {len(axes)} Axes, and {type(self).__name__} draws {self._n_panels} panels")
        with pyplot().rc_context(_STYLE):
            self._draw(axes)
        for panel in axes:
            # an image fills its panel; others have a light grid below their curves, no frame above and to the right
            if not panel.images:
                panel.grid(alpha=0.25, linewidth=0.8)
                panel.set_axisbelow(True)
                panel.spines[["top", "right"]].set_visible(False)
            _draw_names_as_they_are(panel)
        if ax is None:
            _draw_as_they_are(axes[0].figure.texts, 60)
        # Displays are frozen, since their numbers are a result; what `plot` leaves is not part of it.
        object.__setattr__(self, "axes_", axes)
        object.__setattr__(self, "figure_", axes[0].figure)
        return self

    def save(self, path: str | Path) -> Path:
        """Draw into a new figure and write it to `path` (PNG, SVG, PDF: by the suffix), whole or not at all.

        Raises
        ------
        FileExistsError
            If a file is there that Matplotlib has not drawn: nothing else is replaced.
        """
        check_file(path, _PICTURE)
        figure = self.plot().figure_
        try:
            with written_whole(path, _PICTURE) as hidden:
                figure.savefig(hidden, dpi=150)
        finally:
            pyplot().close(figure)
        return Path(path)

    @property
    def _n_panels(self) -> int:
        return 1

    def _new_axes(self, **options: Any) -> list[Axes]:
        """The panels of a new figure; `options` are those of `panels`."""
        axes = panels(self._n_panels, **{"size": self._size, **self._layout, **options})
        if self._is_titled and (title := getattr(self, "title", "")):
            axes[0].figure.suptitle(title)
        return axes

    def _draw(self, axes: Sequence[Axes]) -> None:
        """Draw the panels; a subclass says how."""
        raise TypeError(f"{type(self).__name__} does not say how it is drawn")


def _draw_names_as_they_are(ax: Axes) -> None:
    """Take no text of a panel for a formula, since columns and labels may hold ``$``; shorten what would fill it."""
    from matplotlib.ticker import FixedLocator, FuncFormatter

    for axis in (ax.xaxis, ax.yaxis):
        # Names that `set_ticks` was given; numbers of other axes are formulas of Matplotlib's own.
        if isinstance(axis.get_major_locator(), FixedLocator) and isinstance(axis.get_major_formatter(), FuncFormatter):
            names = [shortened(label.get_text(), 30) for label in axis.get_ticklabels()]
            axis.set_ticks(axis.get_ticklocs(), names, parse_math=False, usetex=False)
    # about the width of a panel, and half of it
    labels = ax.xaxis.label, ax.yaxis.label
    _draw_as_they_are((ax.title, *labels, *ax.texts), 60)
    for label in labels:
        # a longer line would be cut at the edges of a panel of three inches
        label.set_text(fill(label.get_text(), 36))
    if (legend := ax.get_legend()) is not None:
        _draw_as_they_are(legend.get_texts(), 30)


def _draw_as_they_are(texts: Iterable[Text], most: int) -> None:
    """Take no text for a formula, and shorten those of more than `most` characters."""
    for text in texts:
        text.set(text=shortened(text.get_text(), most), parse_math=False, usetex=False)


def panels(number: int, *, size: tuple[float, float], columns: int = 4, sharey: bool = False) -> list[Axes]:
    """A new figure of `number` Axes of `size` inches each, at most `columns` in a row."""
    columns = min(number, columns)
    # Division rounded up: the last row may have empty places, which are taken away.
    rows = -(-number // columns)
    figure, axes = pyplot().subplots(
        rows, columns, figsize=(size[0] * columns, size[1] * rows), sharey=sharey, squeeze=False, layout="constrained"
    )
    for spare in axes.ravel()[number:]:
        figure.delaxes(spare)
    return list(axes.ravel()[:number])


def bare(ax: Axes) -> None:
    """Equal units, no ticks: for pictures of a plane whose numbers say nothing."""
    ax.set_aspect("equal")
    ax.set_xticks([])
    ax.set_yticks([])
