//! Registers metrics, and lists them for the reference.

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{self, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

/// The prefix of nodegate's own metrics.
pub(super) const PREFIX: &str = "nodegate";

/// What the reference says about one metric.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The part of the reference that lists it.
    pub section: &'static str,
    /// The name as it is scraped: of a histogram the name without `_bucket`, `_sum` and `_count`.
    pub name: String,
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: String,
    /// The unit, if the value has one.
    pub unit: Option<String>,
    /// The names of its labels.
    pub labels: Vec<String>,
    /// What it means.
    pub help: &'static str,
}

/// Where metrics are registered.
pub(super) struct Catalog {
    pub(super) registry: Registry,
    pub(super) listed: Vec<Listed>,
    section: &'static str,
}

/// An [`Entry`] whose texts are made on request.
#[derive(Debug)]
pub(super) struct Listed {
    section: &'static str,
    name: String,
    kind: &'static str,
    unit: Option<Unit>,
    labels: fn() -> Vec<String>,
    help: &'static str,
}

impl Listed {
    pub(super) fn entry(&self) -> Entry {
        Entry {
            section: self.section,
            name: self.name.clone(),
            kind: self.kind.to_owned(),
            unit: self.unit.as_ref().map(|unit| unit.as_str().to_owned()),
            labels: (self.labels)(),
            help: self.help,
        }
    }
}

impl Catalog {
    pub(super) fn new() -> Self {
        Self { registry: Registry::default(), listed: Vec::new(), section: "" }
    }

    /// What is added from now on is listed in this part of the reference.
    pub(super) fn section(&mut self, section: &'static str) {
        self.section = section;
    }

    /// Adds a metric without a unit.
    pub(super) fn add<M: Labelled>(&mut self, name: &'static str, help: &'static str, metric: &M) {
        self.list(format!("{PREFIX}_{name}"), None, help, metric);
        self.registry.register(format!("{PREFIX}_{name}"), help, metric.clone());
    }

    /// Adds a metric with a unit, which ends its name.
    pub(super) fn add_in<M: Labelled>(&mut self, name: &'static str, unit: Unit, help: &'static str, metric: &M) {
        self.list(format!("{PREFIX}_{name}_{}", unit.as_str()), Some(unit.clone()), help, metric);
        self.registry.register_with_unit(format!("{PREFIX}_{name}"), help, unit, metric.clone());
    }

    fn list<M: Labelled>(&mut self, stem: String, unit: Option<Unit>, help: &'static str, metric: &M) {
        let (kind, suffix) = match metric.metric_type() {
            MetricType::Counter => ("counter", "_total"),
            MetricType::Gauge => ("gauge", ""),
            MetricType::Histogram => ("histogram", ""),
            MetricType::Info => ("info", "_info"),
            MetricType::Unknown => ("unknown", ""),
        };
        let name = format!("{stem}{suffix}");
        self.listed.push(Listed { section: self.section, name, kind, unit, labels: M::labels, help });
    }

    /// Lists a metric that a collector adds.
    pub(super) fn list_collected(&mut self, name: &str, kind: &'static str, unit: Option<Unit>, help: &'static str) {
        self.listed.push(Listed { section: self.section, name: name.to_owned(), kind, unit, labels: Vec::new, help });
    }
}

/// A metric that knows the names of its labels.
pub(super) trait Labelled: Metric + Clone {
    fn labels() -> Vec<String> {
        Vec::new()
    }
}

impl Labelled for Counter {}

impl<N, A> Labelled for Gauge<N, A>
where
    Self: Metric + Clone,
    A: gauge::Atomic<N>,
{
}

impl Labelled for Histogram {}

impl<L, M, C> Labelled for Family<L, M, C>
where
    Self: Metric + Clone,
    L: Labels,
{
    fn labels() -> Vec<String> {
        names_of::<L>()
    }
}

/// Labels of a family or of an [`Info`]; every field is a label.
pub(super) trait Labels:
    EncodeLabelSet + Clone + Default + std::fmt::Debug + std::hash::Hash + Eq + Send + Sync + 'static
{
}

impl<L> Labels for L where
    L: EncodeLabelSet + Clone + Default + std::fmt::Debug + std::hash::Hash + Eq + Send + Sync + 'static
{
}

/// The names of labels, read from what is written for their default values.
pub(super) fn names_of<L: Labels>() -> Vec<String> {
    let family = Family::<L, Counter>::default();
    drop(family.get_or_create(&L::default()));
    let mut registry = Registry::default();
    registry.register("of", "Labels", family);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = encode(&mut text, &registry);
    let labels = text.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(labels, _)| labels);
    labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned())).collect()
}

/// Labels that never change while the process runs.
#[derive(Clone, Debug)]
pub(super) struct Constant<L>(pub(super) L);

impl<L: Labels> EncodeMetric for Constant<L> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        Info::new(self.0.clone()).encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Info
    }
}

impl<L: Labels> Labelled for Constant<L> {
    fn labels() -> Vec<String> {
        names_of::<L>()
    }
}
