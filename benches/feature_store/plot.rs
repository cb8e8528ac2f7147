//! Memory and disk over the simulated day, as an SVG file.

use std::fmt::Write;

use crate::load::Figures;
use crate::process::Sizes;

/// The size of one of the two charts, in pixels, and the margin around it.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 220.0;
const MARGIN: f64 = 48.0;
const COLORS: [&str; 4] = ["#0b6e4f", "#c1121f", "#3a86ff", "#7a5195"];

/// One of the sizes.
type OfSizes = fn(&Sizes) -> f64;

/// One chart for memory and one for disk, with a line for each store.
pub fn of_sizes(stores: &[(&str, &[Figures])]) -> String {
    let (width, height) = (WIDTH + 2.0 * MARGIN, 2.0 * (HEIGHT + 2.0 * MARGIN));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let charts: [(&str, OfSizes); 2] = [("memory, MB", |sizes| sizes.rss_mb), ("disk, MB", |sizes| sizes.disk_mb)];
    for ((what, value), top) in charts.into_iter().zip([MARGIN, HEIGHT + 3.0 * MARGIN]) {
        chart(&mut svg, what, stores, value, top);
    }
    svg.push_str("</svg>\n");
    svg
}

#[expect(clippy::cast_precision_loss, reason = "a few dozen points")]
fn chart(svg: &mut String, what: &str, stores: &[(&str, &[Figures])], value: OfSizes, top: f64) {
    let values =
        |rounds: &[Figures]| rounds.iter().filter_map(|each| each.sizes.as_ref()).map(value).collect::<Vec<_>>();
    let most = stores.iter().flat_map(|(_, rounds)| values(rounds)).fold(1.0, f64::max);
    let bottom = top + HEIGHT;
    writeln!(
        svg,
        "<text x=\"{MARGIN}\" y=\"{}\">{what}, over a day of updates; the highest is {most:.0}</text>\n\
         <path d=\"M{MARGIN},{top} V{bottom} H{}\" fill=\"none\" stroke=\"gray\"/>",
        top - 10.0,
        MARGIN + WIDTH
    )
    .unwrap();
    for ((name, rounds), color) in stores.iter().zip(COLORS) {
        let values = values(rounds);
        let step = WIDTH / values.len().saturating_sub(1).max(1) as f64;
        let point = |(at, value): (usize, &f64)| {
            format!("{:.1},{:.1}", MARGIN + at as f64 * step, bottom - value / most * HEIGHT)
        };
        let points: Vec<String> = values.iter().enumerate().map(point).collect();
        let last = values.last().copied().unwrap_or_default();
        let label = bottom - last / most * HEIGHT - 6.0;
        writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>\n\
             <text x=\"{}\" y=\"{label:.1}\" text-anchor=\"end\" fill=\"{color}\">{name} {last:.0}</text>",
            points.join(" "),
            MARGIN + WIDTH
        )
        .unwrap();
    }
}
