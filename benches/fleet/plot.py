"""A drawing of shares of a fleet over time: self-contained SVG."""
from html import escape

# Colours that colour-blind readers can distinguish (Okabe and Ito).
LINE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#999999")
DRAWING_WIDTH, PANEL_HEIGHT, TITLE_HEIGHT = 820, 260, 40
LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 64, 250, 26, 48
TICK_HOURS = (0.25, 0.5, 1, 2, 4, 6, 12, 24, 48, 96)


def plot(title, panels):
    """PANELS: [(name, hours, percent, [(name, color, dashed, [(hour, percent)])])], below each other."""
    height = TITLE_HEIGHT + PANEL_HEIGHT * len(panels)
    size = f'viewBox="0 0 {DRAWING_WIDTH} {height}" width="{DRAWING_WIDTH}" height="{height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
             '<rect width="100%" height="100%" fill="white"/>', text(14, 25, title, size=14)]
    for number, panel in enumerate(panels):
        parts += draw(TITLE_HEIGHT + PANEL_HEIGHT * number, *panel)
    return "\n".join([*parts, "</svg>\n"])


def draw(top, name, hours, percent, lines):
    width, height = DRAWING_WIDTH - LEFT_MARGIN - RIGHT_MARGIN, PANEL_HEIGHT - TOP_MARGIN - BOTTOM_MARGIN

    def x(hour):
        return LEFT_MARGIN + width * hour / hours

    def y(share):
        return top + TOP_MARGIN + height * (1 - share / percent)

    yield text(LEFT_MARGIN, top + 14, name, size=13)
    for step in range(6):
        share = percent * step / 5
        yield f'<path d="M{LEFT_MARGIN} {y(share):.1f}h{width}" stroke="#ddd"/>'
        yield text(LEFT_MARGIN - 6, y(share) + 4, f"{share:g} %", "end")
    between = next(step for step in TICK_HOURS if hours / step <= 8)
    for number in range(int(hours / between) + 1):
        yield text(x(number * between), top + TOP_MARGIN + height + 18, f"{number * between:g}", "middle")
    yield text(LEFT_MARGIN + width / 2, top + TOP_MARGIN + height + 38, "hours after the start", "middle")
    yield f'<path d="M{LEFT_MARGIN} {top + TOP_MARGIN}v{height}h{width}" fill="none" stroke="#333"/>'
    for number, (label, color, dashed, points) in enumerate(lines):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        stroke = f'fill="none" stroke="{LINE_COLORS[color % len(LINE_COLORS)]}" stroke-width="1.8"{dash}'
        corners = [f"{x(hour):.1f} {y(min(share, percent)):.1f}" for hour, share in points]
        path = f"M{'L'.join(corners)}" if corners else ""
        yield f'<path d="{path}" {stroke}/>'
        row = top + TOP_MARGIN + 12 + 20 * number
        yield f'<path d="M{DRAWING_WIDTH - RIGHT_MARGIN + 14} {row}h26" {stroke}/>'
        yield text(DRAWING_WIDTH - RIGHT_MARGIN + 46, row + 4, label)


def text(x, y, words, anchor="start", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#333">{escape(words)}</text>'
