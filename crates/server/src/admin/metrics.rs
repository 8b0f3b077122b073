//! The figures in the OpenMetrics format, which Prometheus reads.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::figures::{FigureKind, ServerFigures};

/// Encodes `figures`.
pub(super) fn text(figures: ServerFigures) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("farbank");
    registry.register_collector(Box::new(figures));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

impl fmt::Debug for ServerFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.figures).finish()
    }
}

impl Collector for ServerFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for figure in &self.figures {
            let (name, help, value) = (figure.name, figure.help, figure.value);
            let help = help.trim_end_matches('.');
            match figure.kind {
                FigureKind::Counter => {
                    let metric = ConstCounter::new(value);
                    let kind = metric.metric_type();
                    metric.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
                }
                FigureKind::Gauge => {
                    let metric = ConstGauge::new(value);
                    let kind = metric.metric_type();
                    metric.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
                }
            }
        }
        let help = "Keys in each database";
        let mut keys = encoder.encode_descriptor("keys", help, None, MetricType::Gauge)?;
        for (db, count) in &self.keys {
            let labels = [("db", db.to_string())];
            ConstGauge::new(*count as f64).encode(keys.encode_family(&labels)?)?;
        }
        let help = "Time from when a worker reads a request until it sends the reply";
        let mut latency =
            encoder.encode_descriptor("request_seconds", help, None, MetricType::Histogram)?;
        let (sum, count) = (self.latency.sum_secs(), self.latency.count());
        let buckets = self.latency.octaves_secs();
        latency.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}
