//! Samples and families of metrics.

use std::fmt::{self, Debug, Error};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::registry::Registry;

/// The labels of a sample.
pub type MetricLabels = Vec<(&'static str, String)>;

/// One label.
pub fn label(name: &'static str, value: &str) -> MetricLabels {
    vec![(name, value.to_owned())]
}

/// Writes the samples of one metric; a metric without samples is omitted.
pub fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (MetricLabels, M)>,
) -> Result<(), Error> {
    let mut samples = samples.into_iter().peekable();
    let Some((_, first)) = samples.peek() else { return Ok(()) };
    let mut metric = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    samples.try_for_each(|(labels, sample)| sample.encode(metric.encode_family(&labels)?))
}

/// Writes a metric that has one sample and no labels.
pub fn single<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    sample: &M,
) -> Result<(), Error> {
    sample.encode(encoder.encode_descriptor(name, help, None, sample.metric_type())?)
}

/// Converts a count to the value of a gauge.
pub fn gauge_value(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// Returns the metrics that `write` writes, in OpenMetrics. Each name gets the prefix `ledge_`.
pub fn open_metrics<F>(write: F) -> Result<String, Error>
where
    F: Fn(&mut DescriptorEncoder<'_>) -> fmt::Result + Send + Sync + 'static,
{
    let mut registry = Registry::with_prefix("ledge");
    registry.register_collector(Box::new(WriterCollector(write)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).map(|()| text)
}

struct WriterCollector<F>(F);

impl<F> Debug for WriterCollector<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriterCollector")
    }
}

impl<F: Fn(&mut DescriptorEncoder<'_>) -> fmt::Result + Send + Sync + 'static> Collector for WriterCollector<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut encoder)
    }
}

/// Returns the samples that `write` writes, without descriptions: for tests.
pub fn samples<F>(write: F) -> Vec<String>
where
    F: Fn(&mut DescriptorEncoder<'_>) -> fmt::Result + Send + Sync + 'static,
{
    let text = open_metrics(write).unwrap_or_default();
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}
