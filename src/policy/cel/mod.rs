//! stub
use std::collections::BTreeMap;
/// x
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polarity {
    /// x
    Presence,
    /// x
    Value,
}
/// x
pub enum Scope {
    /// x
    Node,
    /// x
    Write,
}
/// x
pub enum Yields {
    /// x
    Bool,
    /// x
    Text,
    /// x
    LabelMap,
}
/// x
#[derive(Debug)]
pub struct LabelRead {
    pub(crate) key: String,
    pub(crate) polarity: Polarity,
}
/// x
#[derive(Debug, Default)]
pub struct Reads {
    pub(crate) labels: Vec<LabelRead>,
    pub(crate) any_label: bool,
    pub(crate) taints: bool,
    pub(crate) gpu: bool,
    pub(crate) other: bool,
}
/// x
#[derive(Debug)]
pub struct Expression {
    reads: Reads,
}
/// x
pub struct Variables<'a>(&'a ());
/// x
pub struct NodeVariables;
impl NodeVariables {
    pub(crate) fn new(_: &serde_json::Value) -> Self {
        Self
    }
    pub(crate) fn variables<'v>(
        &self,
        _l: impl Iterator<Item = (&'v str, &'v str)>,
        _t: impl Iterator<Item = (&'v str, &'v str, &'v str)>,
        _g: Option<&super::gpu::GpuFacts>,
        _r: super::facts::Readiness,
    ) -> Variables<'_> {
        Variables(&())
    }
}
impl Expression {
    /// x
    pub fn compile(_s: &str, _scope: Scope, _y: Yields) -> Result<Self, String> {
        Ok(Self { reads: Reads::default() })
    }
    pub(crate) fn reads(&self) -> &Reads {
        &self.reads
    }
    pub(crate) fn evaluate_bool(&self, _: &Variables<'_>) -> Result<bool, String> {
        Err("stub".into())
    }
    pub(crate) fn evaluate_text(&self, _: &Variables<'_>) -> Result<String, String> {
        Err("stub".into())
    }
    pub(crate) fn evaluate_map(&self, _: &Variables<'_>) -> Result<BTreeMap<String, String>, String> {
        Err("stub".into())
    }
}
