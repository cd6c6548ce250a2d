"""What every figure must satisfy: its words can be read."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from aliceopt.lab.figures import style


def visible_texts(figure: Figure) -> list[Text]:
    """The texts a reader sees: not empty, not hidden, no tick label beyond the ends of its axis."""
    unseen: set[Text] = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    unseen.update((tick.label1, tick.label2))
    texts = figure.findobj(Text)
    return [t for t in texts if t.get_visible() and t.get_text().strip() and t not in unseen]


def assert_legible(figure: Figure, at_least: int) -> None:
    """So many texts or more, of nine points, whole within the figure and clear of one another."""
    with style.look():
        canvas = figure.canvas
        assert isinstance(canvas, FigureCanvasAgg)
        canvas.draw()
        texts = visible_texts(figure)
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    assert len(texts) >= at_least
    for i, (text, box) in enumerate(zip(texts, boxes, strict=True)):
        assert float(text.get_fontsize()) >= style.SMALLEST_TEXT == 9, text
        assert min(box.x0, box.y0) >= 0, text
        assert box.x1 <= figure.bbox.width, text
        assert box.y1 <= figure.bbox.height, text
        clashes = [texts[j] for j in range(i) if box.overlaps(boxes[j])]
        assert not clashes, (text, clashes)
