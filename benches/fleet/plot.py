"""A drawing of shares of a fleet over time: self-contained SVG."""
from html import escape

# Told apart by people who do not see all colours (Okabe and Ito).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#999999")
WIDTH, PANEL, TITLE = 820, 260, 40
LEFT, RIGHT, TOP, BOTTOM = 64, 250, 26, 48
TICKS = (0.25, 0.5, 1, 2, 4, 6, 12, 24, 48, 96)  # hours


def plot(title, panels):
    """PANELS: [(name, hours, percent, [(name, color, dashed, [(hour, percent)])])], below each other."""
    height = TITLE + PANEL * len(panels)
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
             '<rect width="100%" height="100%" fill="white"/>', text(14, 25, title, size=14)]
    for number, panel in enumerate(panels):
        parts += draw(TITLE + PANEL * number, *panel)
    return "\n".join([*parts, "</svg>\n"])


def draw(top, name, hours, percent, lines):
    width, height = WIDTH - LEFT - RIGHT, PANEL - TOP - BOTTOM

    def x(hour):
        return LEFT + width * hour / hours

    def y(share):
        return top + TOP + height * (1 - share / percent)

    yield text(LEFT, top + 14, name, size=13)
    for step in range(6):
        share = percent * step / 5
        yield f'<path d="M{LEFT} {y(share):.1f}h{width}" stroke="#ddd"/>'
        yield text(LEFT - 6, y(share) + 4, f"{share:g} %", "end")
    between = next(step for step in TICKS if hours / step <= 8)
    for number in range(int(hours / between) + 1):
        yield text(x(number * between), top + TOP + height + 18, f"{number * between:g}", "middle")
    yield text(LEFT + width / 2, top + TOP + height + 38, "hours after the start", "middle")
    yield f'<path d="M{LEFT} {top + TOP}v{height}h{width}" fill="none" stroke="#333"/>'
    for number, (label, color, dashed, points) in enumerate(lines):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        stroke = f'fill="none" stroke="{COLORS[color % len(COLORS)]}" stroke-width="1.8"{dash}'
        corners = [f"{x(hour):.1f} {y(min(share, percent)):.1f}" for hour, share in points]
        path = f"M{'L'.join(corners)}" if corners else ""
        yield f'<path d="{path}" {stroke}/>'
        row = top + TOP + 12 + 20 * number
        yield f'<path d="M{WIDTH - RIGHT + 14} {row}h26" {stroke}/>'
        yield text(WIDTH - RIGHT + 46, row + 4, label)


def text(x, y, words, anchor="start", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#333">{escape(words)}</text>'
