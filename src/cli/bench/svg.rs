//! A drawing of latency against load: self-contained SVG with latency on a logarithmic axis.

use std::fmt::Write;

/// One diagram.
#[derive(Debug)]
pub struct Panel {
    /// The label of the horizontal axis.
    pub axis: &'static str,
    pub scale: Scale,
    /// The lines; their points are load and milliseconds.
    pub lines: Vec<Line>,
}

/// The scale of the horizontal axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// The same step for each unit.
    Linear,
    /// The same step for each doubling.
    Doubling,
}

/// One line.
#[derive(Debug)]
pub struct Line {
    /// The name in the legend.
    pub name: String,
    /// The index of the colour.
    pub color: usize,
    pub dashed: bool,
    /// The points, in the order of their loads.
    pub points: Vec<(f64, f64)>,
}

/// Colours that colour-blind readers can distinguish (Okabe and Ito).
const LINE_COLORS: [&str; 4] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"];

const DRAWING_WIDTH: f64 = 760.0;
const PANEL_HEIGHT: f64 = 340.0;
const TITLE_HEIGHT: f64 = 40.0;
/// The margins around the axes of a panel.
const LEFT_MARGIN: f64 = 78.0;
const RIGHT_MARGIN: f64 = 170.0;
const TOP_MARGIN: f64 = 14.0;
const BOTTOM_MARGIN: f64 = 52.0;

/// Draws the panels below each other.
pub fn plot(title: &str, panels: &[Panel]) -> String {
    #[expect(clippy::cast_precision_loss, reason = "panels are few")]
    let height = TITLE_HEIGHT + PANEL_HEIGHT * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {DRAWING_WIDTH} {height}\" \
         width=\"{DRAWING_WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut svg, (14.0, 25.0), "start", "font-size=\"14\" font-weight=\"bold\"", &shorten(title));
    for (index, panel) in panels.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "panels are few")]
        let top = TITLE_HEIGHT + PANEL_HEIGHT * index as f64;
        panel.draw(&mut svg, top);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Shortens a title to one line.
fn shorten(title: &str) -> String {
    if title.chars().count() <= 100 { title.to_owned() } else { title.chars().take(99).chain(['…']).collect() }
}

impl Panel {
    fn draw(&self, svg: &mut String, top: f64) {
        let points = || self.lines.iter().flat_map(|line| &line.points).filter(|(x, y)| x.is_finite() && *y > 0.0);
        let mut loads: Vec<f64> = points().map(|(x, _)| *x).collect();
        loads.sort_by(f64::total_cmp);
        loads.dedup();
        let (Some(&least), Some(&most)) = (loads.first(), loads.last()) else { return };
        let ticks = ticks(points().map(|(_, y)| *y));
        let (Some(&low), Some(&high)) = (ticks.first(), ticks.last()) else { return };
        let (width, height) = (DRAWING_WIDTH - LEFT_MARGIN - RIGHT_MARGIN, PANEL_HEIGHT - TOP_MARGIN - BOTTOM_MARGIN);
        let along = |x: f64| match self.scale {
            Scale::Linear => x,
            Scale::Doubling => x.max(f64::MIN_POSITIVE).log2(),
        };
        let place_x = |x: f64| {
            // A single load is placed in the middle.
            let part = if most > least { (along(x) - along(least)) / (along(most) - along(least)) } else { 0.5 };
            LEFT_MARGIN + width * (0.04 + 0.92 * part)
        };
        let place_y = |y: f64| top + TOP_MARGIN + height * (1.0 - (y / low).ln() / (high / low).ln());
        for &tick in &ticks {
            let y = place_y(tick);
            let _ = writeln!(svg, "<path d=\"M{LEFT_MARGIN} {y:.1}h{width}\" stroke=\"#ddd\"/>");
            text(svg, (LEFT_MARGIN - 8.0, y + 4.5), "end", "", &number(tick));
        }
        let bottom = top + TOP_MARGIN + height;
        let mut last_label = f64::NEG_INFINITY;
        for &load in &loads {
            let x = place_x(load);
            let _ = writeln!(svg, "<path d=\"M{x:.1} {bottom:.1}v5\" stroke=\"#333\"/>");
            // A label that would overlap the previous one is left out.
            if x - last_label > 36.0 {
                text(svg, (x, bottom + 20.0), "middle", "", &number(load));
                last_label = x;
            }
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT_MARGIN} {:.1}v{height}h{width}\" fill=\"none\" stroke=\"#333\"/>",
            top + TOP_MARGIN
        );
        text(svg, (LEFT_MARGIN + width / 2.0, bottom + 42.0), "middle", "", self.axis);
        let middle = top + TOP_MARGIN + height / 2.0;
        let turned = format!("transform=\"rotate(-90 20 {middle:.1})\"");
        text(svg, (20.0, middle), "middle", &turned, "latency, ms");
        for (index, line) in self.lines.iter().enumerate() {
            #[expect(clippy::cast_precision_loss, reason = "lines are few")]
            let legend = top + TOP_MARGIN + 14.0 + 22.0 * index as f64;
            line.draw(svg, legend, &place_x, &place_y);
        }
    }
}

impl Line {
    fn draw(&self, svg: &mut String, legend: f64, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) {
        let color = LINE_COLORS.get(self.color % LINE_COLORS.len()).copied().unwrap_or("black");
        let dash = if self.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let mut path = String::new();
        for (load, latency) in self.points.iter().filter(|(x, y)| x.is_finite() && *y > 0.0) {
            let (x, y) = (x(*load), y(*latency));
            let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { 'M' } else { 'L' });
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{color}\"/>");
        }
        if !path.is_empty() {
            let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>");
        }
        let start = DRAWING_WIDTH - RIGHT_MARGIN + 18.0;
        let _ = writeln!(svg, "<path d=\"M{start} {legend}h30\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>");
        text(svg, (start + 38.0, legend + 4.5), "start", "", &self.name);
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, attributes: &str, text: &str) {
    let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#333\" {attributes}>");
    for character in text.chars() {
        match character {
            '<' => svg.push_str("&lt;"),
            '>' => svg.push_str("&gt;"),
            '&' => svg.push_str("&amp;"),
            // XML cannot represent most control characters.
            control if control.is_control() || matches!(control, '\u{FFFE}' | '\u{FFFF}') => svg.push('\u{FFFD}'),
            other => svg.push(other),
        }
    }
    svg.push_str("</text>\n");
}

/// Ticks at 1, 2 and 5 times powers of ten, from the last one below all values to the first above; at least two. Empty
/// without values.
fn ticks(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut bounds: Option<(f64, f64)> = None;
    for value in values {
        let (low, high) = bounds.unwrap_or((value, value));
        bounds = Some((low.min(value), high.max(value)));
    }
    // Bounds the values to latencies from a nanosecond to eleven days.
    let Some((low, high)) = bounds.map(|(low, high)| (low.clamp(1e-6, 1e9), high.clamp(1e-6, 1e9))) else {
        return Vec::new();
    };
    let all = (-7..=10).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
    let all: Vec<f64> = all.collect();
    let first = all.iter().rposition(|tick| *tick <= low).unwrap_or(0);
    let last = all.iter().position(|tick| *tick >= high).unwrap_or(all.len() - 1).max(first + 1);
    let ticks = all.get(first..=last).unwrap_or_default();
    if ticks.len() <= 13 {
        return ticks.to_vec();
    }
    // For many powers of ten, only those and the bounds.
    let inner = |(index, _): &(usize, &f64)| *index == 0 || *index + 1 == ticks.len() || (first + index) % 3 == 0;
    ticks.iter().enumerate().filter(inner).map(|(_, tick)| *tick).collect()
}

/// The number of a tick without trailing zeros.
fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ticks_enclose_the_values_in_steps_of_one_two_five() {
        let texts = |values: &[f64]| ticks(values.iter().copied()).into_iter().map(number).collect::<Vec<_>>();
        assert_eq!(texts(&[0.3, 4.0]), ["0.2", "0.5", "1", "2", "5"]);
        assert_eq!(texts(&[2.0]), ["2", "5"]);
        assert_eq!(texts(&[0.001, 30_000.0]).first().map(String::as_str), Some("0.001"));
        assert!(texts(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn any_figures_give_well_formed_xml_inside_the_frame(
            title: String,
            names in prop::collection::vec(".*", 1..4),
            points in prop::collection::vec((0.01_f64..1e6, 0.0_f64..1e7), 0..8),
            doubling: bool,
        ) {
            let line = |(color, name): (usize, String)| Line { name, color, dashed: color % 2 == 1, points: points.clone() };
            let lines = names.into_iter().enumerate().map(line).collect();
            let scale = if doubling { Scale::Doubling } else { Scale::Linear };
            let svg = plot(&title, &[Panel { axis: "load", scale, lines }]);
            let parsed = roxmltree::Document::parse(&svg);
            prop_assert!(parsed.is_ok(), "{:?}\n{}", parsed.err(), svg);
            for circle in parsed.unwrap().descendants().filter(|node| node.has_tag_name("circle")) {
                let place = |name| circle.attribute(name).unwrap().parse::<f64>().unwrap();
                prop_assert!((LEFT_MARGIN..=DRAWING_WIDTH - RIGHT_MARGIN).contains(&place("cx")), "{}", place("cx"));
                prop_assert!((TITLE_HEIGHT..=TITLE_HEIGHT + PANEL_HEIGHT).contains(&place("cy")), "{}", place("cy"));
            }
        }
    }
}
