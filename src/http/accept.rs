//! The header `Accept` of a call.

use axum::http::{HeaderMap, header};

/// The weight of the most specific range of `Accept` among `names`, the most specific first; 0 without one.
pub(super) fn accepted_weight(headers: &HeaderMap, names: &[&str]) -> f32 {
    let ranges: Vec<_> = accepted_ranges(headers).collect();
    let weight = |name: &&str| ranges.iter().find(|(range, _)| range == name).map(|(_, weight)| *weight);
    names.iter().find_map(weight).unwrap_or(0.0)
}

pub(super) fn accepted_ranges(headers: &HeaderMap) -> impl Iterator<Item = (String, f32)> {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(accepted_range)
}

/// A range of `Accept` in small letters, with its weight; `None` for one that is no range.
fn accepted_range(text: &str) -> Option<(String, f32)> {
    let mut parts = text.split(';').map(str::trim);
    let range = parts.next()?.to_ascii_lowercase();
    let weight = parts.find_map(|part| part.strip_prefix(['q', 'Q'])?.strip_prefix('='));
    let weight = weight.map_or(Some(1.0), |weight| weight.parse().ok().filter(|weight| (0.0..=1.0).contains(weight)));
    Some((range, weight?))
}
