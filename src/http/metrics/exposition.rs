//! The two text formats of metrics, and the choice between them by the `Accept` header.
//!
//! The encoder writes OpenMetrics. Prometheus's own format, which every reader of metrics knows, differs in the lines
//! before the samples: the name of a counter has its suffix, and there are neither units nor an end marker.

use axum::http::{HeaderMap, HeaderValue, header};

/// A text format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpositionFormat {
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl ExpositionFormat {
    /// The format that `Accept` asks for: the one with the highest weight, or else Prometheus's own, as Prometheus's
    /// client libraries choose. A scrape without the header, or with `*/*`, gets Prometheus's own format too.
    pub fn accepted(headers: &HeaderMap) -> Self {
        let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let offers = values.flat_map(|value| value.split(',')).filter_map(Self::offer);
        // Of equal weights, the first wins.
        let best = offers.reduce(|best, offer| if offer.1 > best.1 { offer } else { best });
        best.map_or(Self::Text, |(format, _)| format)
    }

    /// The format of one type of an `Accept` header, with its weight; `None` where it is neither, or has the weight 0.
    fn offer(item: &str) -> Option<(Self, f32)> {
        let mut parts = item.split(';').map(str::trim);
        let kind = parts.next()?.to_ascii_lowercase();
        let (mut version, mut weight) = ("", 1.0);
        for part in parts {
            let Some((name, value)) = part.split_once('=') else { continue };
            match name.trim().to_ascii_lowercase().as_str() {
                "version" => version = value.trim().trim_matches('"'),
                "q" => weight = value.trim().parse().unwrap_or(0.0),
                _ => {}
            }
        }
        let format = match (kind.as_str(), version) {
            ("application/openmetrics-text", "" | "1.0.0") => Self::OpenMetrics,
            ("text/plain", "" | "0.0.4") | ("text/*" | "*/*", _) => Self::Text,
            _ => return None,
        };
        (weight > 0.0).then_some((format, weight))
    }

    /// The content type of the format.
    pub fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        })
    }

    /// Converts the output of the encoder to this format.
    pub fn write(self, open_metrics: String) -> String {
        match self {
            Self::Text => plain(&open_metrics),
            Self::OpenMetrics => open_metrics,
        }
    }
}

/// Converts OpenMetrics, of counters, gauges and histograms, to Prometheus's own format.
fn plain(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + open_metrics.len() / 16);
    let mut help = None;
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            // The name depends on the type, which comes next.
            (Some("#"), Some("HELP"), Some(_), words) => help = Some(words.unwrap_or_default()),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let suffix = if kind == "counter" { "_total" } else { "" };
                if let Some(help) = help.take() {
                    text.extend(["# HELP ", name, suffix, " ", help, "\n"]);
                }
                text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
            }
            (Some("#"), ..) => {}
            _ => text.extend([line, "\n"]),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(values: &[&str]) -> ExpositionFormat {
        let values = values.iter().map(|value| (header::ACCEPT, HeaderValue::from_str(value).unwrap()));
        let mut headers = HeaderMap::new();
        values.for_each(|(name, value)| _ = headers.append(name, value));
        ExpositionFormat::accepted(&headers)
    }

    #[test]
    fn a_scrape_gets_prometheus_text_unless_it_prefers_open_metrics() {
        for plain in [
            &[][..],
            &[""],
            &["*/*"],
            &["text/plain"],
            &["Text/Plain; Version=0.0.4"],
            &["text/*"],
            &["application/json"],
            &["application/openmetrics-text;q=0"],
            &["application/openmetrics-text;q=0.5, text/plain;q=0.6"],
            &["application/openmetrics-text;version=2.0.0, */*;q=0.1"],
            &["application/openmetrics-text;q=0.2", "text/plain"],
            // Sent by Telegraf by default, and by Datadog where OpenMetrics is off.
            &["text/plain;version=0.0.4;q=1,*/*;q=0.1"],
            &[
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,text/plain;version=0.0.4;q=0.3",
            ],
        ] {
            assert_eq!(accepted(plain), ExpositionFormat::Text, "{plain:?}");
        }
        for open in [
            &["application/openmetrics-text"][..],
            &["application/openmetrics-text; version=\"1.0.0\"; charset=utf-8"],
            &["application/openmetrics-text;q=0.6, text/plain;q=0.6"],
            &["text/plain;q=0.2", "application/openmetrics-text;q=0.3"],
            // Sent by Prometheus 2 and 3.
            &[
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            ],
            &[
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            ],
        ] {
            assert_eq!(accepted(open), ExpositionFormat::OpenMetrics, "{open:?}");
        }
    }

    #[test]
    fn a_counter_is_named_with_its_suffix_and_the_end_is_left_out() {
        let open = "# HELP a_b Calls of \\\"x\\\".\n# TYPE a_b counter\n# UNIT a_b b\na_b_total{l=\"# TYPE x counter\"} 1\n\
                    # HELP g_seconds Now\n# TYPE g_seconds gauge\ng_seconds 1.5\n# HELP h Sizes\n# TYPE h histogram\n\
                    h_sum 2\nh_count 1\nh_bucket{le=\"+Inf\"} 1\n# EOF\n";
        let text = "# HELP a_b_total Calls of \\\"x\\\".\n# TYPE a_b_total counter\na_b_total{l=\"# TYPE x counter\"} 1\n\
                    # HELP g_seconds Now\n# TYPE g_seconds gauge\ng_seconds 1.5\n# HELP h Sizes\n# TYPE h histogram\n\
                    h_sum 2\nh_count 1\nh_bucket{le=\"+Inf\"} 1\n";
        assert_eq!(ExpositionFormat::Text.write(open.into()), text);
        assert_eq!(ExpositionFormat::OpenMetrics.write(open.into()), open);
    }
}
