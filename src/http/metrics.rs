//! `GET /metrics`: the counters of every live version, of the process and of the machine, in Prometheus's text format or
//! in that of OpenMetrics.
//!
//! Nothing is counted twice: the figures are read from their owners at each scrape, and between two scrapes nothing runs.

mod audit;
mod egress;
mod exposition;
mod features;
mod messages;
mod models;
mod process;
mod tls;
mod updates;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ledge_base::clock;
use ledge_identity::access::Access;
use ledge_models::repository::statistics::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use self::exposition::Exposition;
use super::App;
use super::reply::error;
use super::updates::visible;

/// Answers with the metrics.
pub async fn metrics(State(app): State<App>, Extension(access): Extension<Access>, headers: HeaderMap) -> Response {
    let format = Exposition::accepted(&headers);
    // Off the async threads: a sensor of the machine may take its time.
    let encoded = tokio::task::spawn_blocking(move || {
        let mut registry = Registry::with_prefix("ledge");
        registry.register_collector(Box::new(Scrape { app, access }));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).map(|()| format.write(text))
    });
    let Ok(Ok(text)) = encoded.await else {
        return error(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written");
    };
    let headers = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, HeaderValue::from_static("accept"))];
    (headers, text).into_response()
}

#[derive(Debug)]
struct Scrape {
    app: App,
    access: Access,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        models::encode(&mut encoder, self.app.serving().repository(), &self.access)?;
        process::encode(&mut encoder)?;
        process::encode_machine(&mut encoder, &self.app.machine().read())?;
        single(
            &mut encoder,
            "http_body_memory_bytes",
            "Bodies of requests and answers that are held now; http.max_memory_bytes is their limit",
            &ConstGauge::new(whole(self.app.memory().used())),
        )?;
        egress::encode(&mut encoder, &self.app.egress().statistics())?;
        if let Some(tls) = self.app.tls() {
            tls::encode(&mut encoder, &tls.status())?;
        }
        if let Some(messages) = self.app.messages() {
            messages::encode(&mut encoder, &messages.snapshot())?;
        }
        if let Some(found) = self.app.serving().features().statistics() {
            #[expect(clippy::cast_precision_loss, reason = "exact for 285,000 years of milliseconds")]
            features::encode(&mut encoder, &found, clock::unix_millis() as f64 / 1e3)?;
        }
        if let Some(updates) = self.app.updates() {
            updates::encode(&mut encoder, &visible(updates.status(), &self.access), clock::unix_millis())?;
        }
        let sink = self.app.serving().audit();
        let queued = audit::Queued { recorded: sink.recorded(), lost: sink.lost() };
        audit::encode(&mut encoder, &self.app.audit().status(), queued, clock::unix_millis())
    }
}

type Labels = Vec<(&'static str, String)>;

/// Writes the samples of one metric; a metric without samples is left out.
fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels, M)>,
) -> Result<(), std::fmt::Error> {
    let mut samples = samples.into_iter().peekable();
    let Some((_, first)) = samples.peek() else { return Ok(()) };
    let mut metric = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    samples.try_for_each(|(labels, sample)| sample.encode(metric.encode_family(&labels)?))
}

/// Writes a metric that has one sample and no labels.
fn single<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    sample: &M,
) -> Result<(), std::fmt::Error> {
    sample.encode(encoder.encode_descriptor(name, help, None, sample.metric_type())?)
}

/// A histogram that somebody else counts.
struct ConstHistogram {
    sum: f64,
    count: u64,
    buckets: Vec<(f64, u64)>,
}

impl ConstHistogram {
    /// `unit` is what one of the histogram's units is in that of the metric: 1e9 nanoseconds are a second.
    #[expect(clippy::cast_precision_loss, reason = "bounds are far below 2^53, and a sum beyond it is off by 1e-16")]
    fn new<const N: usize>(histogram: &Histogram<N>, unit: f64) -> Self {
        let bound = |bound: Option<u64>| bound.map_or(f64::INFINITY, |bound| bound as f64 / unit);
        Self {
            sum: histogram.sum() as f64 / unit,
            count: histogram.count(),
            buckets: histogram.buckets().map(|(upper, count)| (bound(upper), count)).collect(),
        }
    }
}

impl EncodeMetric for ConstHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.encode_histogram::<NoLabelSet>(self.sum, self.count, &self.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

fn whole(figure: impl TryInto<i64>) -> i64 {
    figure.try_into().unwrap_or(i64::MAX)
}
