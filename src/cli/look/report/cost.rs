//! `nodegate report --cost`: the resources and the price of nodes, by a label.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::cli::look::report::document::Cost;
use crate::cli::shared::faults::Faults;
use nodegate_base::text::counted;
use nodegate_policy::api::problem::Problem;
use nodegate_policy::api::schema::{ShapeFault, check, schema_of};
use nodegate_policy::api::source::{FieldPath, SourceText, decode, parse_documents};
use nodegate_policy::gpu::Gpus;
use nodegate_policy::{NodeFacts, Origin, PolicyError};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
/// The hours of a month on average, as cloud providers count.
pub(super) const HOURS_A_MONTH: f64 = 730.0;
const INSTANCE_TYPE: [&str; 2] = ["node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"];

/// A file with prices per hour.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Prices {
    /// The currency, such as `EUR`.
    currency: String,
    /// The price of a node by its instance type.
    #[serde(default)]
    instance_types: BTreeMap<String, f64>,
    /// The price of resources, for nodes whose instance type is not listed.
    #[serde(default)]
    resources: Resources,
}

/// Prices of resources.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Resources {
    /// One core.
    cpu: f64,
    /// One GiB.
    memory: f64,
    /// One GPU.
    gpu: f64,
}

impl Prices {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, has another form, or has a price that is not a positive number.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let name = || format!("--prices {}", path.display());
        let text = decode(std::fs::read(path).with_context(name)?).with_context(name)?;
        let prices = Self::parse(&path.display().to_string(), &text)?;
        let Self { currency: _, instance_types, resources: Resources { cpu, memory, gpu } } = &prices;
        let named = [("cpu", *cpu), ("memory", *memory), ("gpu", *gpu)];
        let named = named.into_iter().map(|(key, price)| (format!("resources.{key}"), price));
        let types = instance_types.iter().map(|(key, price)| (format!("instanceTypes.{key}"), *price));
        for (field, price) in named.chain(types) {
            anyhow::ensure!(
                price.is_finite() && price >= 0.0,
                "{}: {field} is {price}; expected a price per hour, such as 0.25",
                name()
            );
        }
        anyhow::ensure!(
            !instance_types.is_empty() || cpu + memory + gpu > 0.0,
            "{}: contains no price; add instanceTypes or resources",
            name()
        );
        Ok(prices)
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// Returns all places at which it has another form.
    fn parse(file: &str, text: &str) -> Result<Self, Faults> {
        let (origin, text) = (Origin::File(file.to_owned()), SourceText::from(text));
        let refused = |errors: Vec<PolicyError>| {
            let count = counted(errors.len(), "error", "errors");
            Faults::in_file(errors, format!("found {count} in the file with prices"))
        };
        let trees = parse_documents(text.as_str());
        let trees = trees.map_err(|error| refused(vec![PolicyError::of_syntax(&origin, Some(&text), error)]))?;
        let Some(mut tree) = trees.into_iter().next() else {
            let problem = Problem::new("the file is empty", "add currency, and instanceTypes or resources");
            return Err(refused(vec![PolicyError::in_file(&origin, Some(&text), FieldPath::root(), problem)]));
        };
        let mut faults = Vec::new();
        check(&mut tree, &schema_of::<Self>(), &FieldPath::root(), &mut faults);
        let error = |ShapeFault { place, path, problem }| PolicyError {
            place: Some(place),
            ..PolicyError::in_file(&origin, Some(&text), path, problem)
        };
        let errors: Vec<PolicyError> = faults.into_iter().map(error).collect();
        if !errors.is_empty() {
            return Err(refused(errors));
        }
        serde_json::from_value(tree.to_json()).map_err(|error| {
            let problem = error.to_string().into();
            refused(vec![PolicyError::in_file(&origin, Some(&text), FieldPath::root(), problem)])
        })
    }

    /// The price of a node per hour; `None` if the file has none, or if the number of its GPUs is unknown and would change it.
    fn of(&self, node: &NodeFacts<'_>, cpu: f64, memory: f64, gpu: Option<u32>) -> Option<f64> {
        let listed = INSTANCE_TYPE.iter().find_map(|label| self.instance_types.get(node.label(label)?));
        if listed.is_some() {
            return listed.copied();
        }
        let Resources { cpu: per_core, memory: per_gib, gpu: per_gpu } = self.resources;
        let gpus = if per_gpu > 0.0 { f64::from(gpu?) * per_gpu } else { 0.0 };
        let sum = cpu * per_core + memory * per_gib + gpus;
        (sum > 0.0).then_some(sum)
    }
}

/// Sums by the value of a label.
#[derive(Debug)]
pub(super) struct Sums<'a> {
    label: &'a str,
    prices: Option<&'a Prices>,
    groups: BTreeMap<Option<String>, Cost>,
}

impl<'a> Sums<'a> {
    pub(super) fn new(label: &'a str, prices: Option<&'a Prices>) -> Self {
        Self { label, prices, groups: BTreeMap::new() }
    }

    /// Adds a node.
    pub(super) fn add(&mut self, node: &NodeFacts<'_>, gpus: &Gpus) {
        let value = node.label(self.label).map(str::to_owned);
        let cpu = node.capacity_of("cpu").unwrap_or_default();
        let memory = node.capacity_of("memory").unwrap_or_default() / GIB;
        let gpu = match gpus {
            Gpus::None => Some(0),
            Gpus::Unknown(_) => None,
            Gpus::Found(gpus) => gpus.count,
        };
        let group = self.groups.entry(value).or_default();
        group.nodes += 1;
        group.cpu += cpu;
        group.memory_gib += memory;
        group.gpu += u64::from(gpu.unwrap_or_default());
        if let Some(prices) = self.prices {
            let price = prices.of(node, cpu, memory, gpu);
            *group.per_hour.get_or_insert_default() += price.unwrap_or_default();
            *group.unpriced.get_or_insert_default() += usize::from(price.is_none());
        }
    }

    /// The sums, by value; the nodes without the label come first.
    pub(super) fn finish(self) -> Vec<Cost> {
        let currency = self.prices.map(|prices| prices.currency.clone());
        let groups = self.groups.into_iter();
        groups
            .map(|(value, cost)| Cost {
                label: self.label.to_owned(),
                value,
                cpu: rounded(cost.cpu),
                memory_gib: rounded(cost.memory_gib),
                per_hour: cost.per_hour.map(rounded),
                currency: currency.clone(),
                ..cost
            })
            .collect()
    }
}

/// A sum without the last digits, in which floating-point errors add up.
fn rounded(sum: f64) -> f64 {
    (sum * 10_000.0).round() / 10_000.0
}

/// The sums as CSV.
///
/// # Errors
/// Returns an error if a row cannot be written, which is a bug in nodegate.
pub(super) fn csv(costs: &[Cost]) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "label",
        "value",
        "nodes",
        "cpu",
        "memoryGib",
        "gpu",
        "perHour",
        "perMonth",
        "currency",
        "unpriced",
        "hasLabel",
    ])?;
    for Cost { label, value, nodes, cpu, memory_gib, gpu, per_hour, currency, unpriced } in costs {
        let price = |price: f64| format!("{price:.4}");
        writer.write_record([
            label.clone(),
            value.clone().unwrap_or_default(),
            nodes.to_string(),
            cpu.to_string(),
            format!("{memory_gib:.2}"),
            gpu.to_string(),
            per_hour.map(price).unwrap_or_default(),
            per_hour.map(|hour| price(hour * HOURS_A_MONTH)).unwrap_or_default(),
            currency.clone().unwrap_or_default(),
            unpriced.map(|count| count.to_string()).unwrap_or_default(),
            // A label can have an empty value.
            value.is_some().to_string(),
        ])?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}
