//! Compares what autoscalers know of pools with what the nodes of these pools will have.

use super::TemplateFormat;
use super::declared::{Declared, Provisioner};
use super::document::{Difference, Differences, PoolTemplate, Templates, Wrong};
use super::formats::refused;
use nodegate_policy::explain::FieldName;
use nodegate_policy::templates::{Key, TemplateKey, VaryingKey};

/// What differs between what nodes will have and what autoscalers are told. A label that is not the same on all nodes is no fault
/// of a template that does not have it, unless it `is_selected`.
///
/// # Errors
/// Returns an error if groups of several clusters have the name of a pool.
pub(in crate::cli) fn differences(
    templates: &Templates,
    declared: &[Declared],
    format: Option<TemplateFormat>,
    is_selected: impl Fn(&str) -> bool,
) -> anyhow::Result<Differences> {
    let mut found = Differences { pools: templates.pools.len(), differences: Vec::new(), not_found: Vec::new() };
    for pool in &templates.pools {
        let told = pool.id.among(declared)?;
        if told.is_empty() && !pool.same.is_empty() {
            found.not_found.push(pool.pool.clone());
        }
        for declared in told {
            let compared = Compared { pool, declared };
            // What the words of an autoscaler cannot say is not missing in them.
            let said = pool.same.iter().filter(|key| format.is_none_or(|format| refused(format, pool, key).is_none()));
            found.differences.extend(said.filter_map(|key| compared.same(key)));
            found.differences.extend(pool.varying.iter().filter_map(|key| compared.varying(key, &is_selected)));
            found.differences.extend(pool.absent.iter().filter_map(|key| compared.absent(key)));
        }
    }
    Ok(found)
}

/// A pool, and what an object or group says of it to an autoscaler.
struct Compared<'a> {
    pool: &'a PoolTemplate,
    declared: &'a Declared,
}

impl Compared<'_> {
    /// The values that the autoscaler expects of a label or taint; `None` if it does not know the key.
    fn told(&self, field: FieldName, key: &str, effect: Option<&str>) -> Option<Vec<String>> {
        match field {
            FieldName::Taint => {
                let at = (key.to_owned(), effect.unwrap_or_default().to_owned());
                self.declared.taints.get(&at).map(|value| vec![value.clone()])
            }
            FieldName::Label | FieldName::Annotation => self.declared.labels.get(key).cloned(),
        }
    }

    fn difference(&self, because: Wrong, (field, key, effect): (FieldName, &str, Option<&str>)) -> Difference {
        Difference {
            pool: self.pool.pool.clone(),
            told_by: self.declared.told_by.clone(),
            because,
            field,
            key: key.to_owned(),
            effect: effect.map(str::to_owned),
            values: Vec::new(),
            told: self.told(field, key, effect).map(|values| values.join(", ")),
            rule: None,
            pods: None,
        }
    }

    /// What all nodes will have.
    fn same(&self, TemplateKey { field, key, value, effect, policy, rule }: &TemplateKey) -> Option<Difference> {
        let at = (*field, key.as_str(), effect.as_deref());
        let goes_away =
            || self.declared.startup_taints.contains_key(&(key.clone(), effect.clone().unwrap_or_default()));
        let because = match self.told(at.0, at.1, at.2) {
            _ if *field == FieldName::Taint && goes_away() => Wrong::StartupTaint,
            None => Wrong::Missing,
            // Of several values, the autoscaler may choose another.
            Some(values) if values != [value.as_str()] => Wrong::Value,
            Some(_) => return None,
        };
        let (values, rule) = (vec![value.clone()], Some(format!("{policy}/{rule}")));
        Some(Difference { values, rule, ..self.difference(because, at) })
    }

    /// What differs between nodes. Of several values that it is told, the autoscaler expects one.
    fn varying(&self, varying: &VaryingKey, is_selected: impl Fn(&str) -> bool) -> Option<Difference> {
        let VaryingKey { field, key, effect, values, policy, rule, .. } = varying;
        let at = (*field, key.as_str(), effect.as_deref());
        let told = self.told(at.0, at.1, at.2).unwrap_or_default();
        if told.is_empty() && !(*field == FieldName::Label && is_selected(key)) {
            return None;
        }
        // Karpenter gives it to all nodes itself.
        if self.is_on_nodes_anyway() && told == *values {
            return None;
        }
        let is_one_of_them = told.len() > 1 && varying.is_on_all(self.pool.nodes);
        if is_one_of_them && values.iter().all(|value| told.contains(value)) {
            return None;
        }
        let (values, rule) = (values.clone(), Some(format!("{policy}/{rule}")));
        Some(Difference { values, rule, ..self.difference(Wrong::Varies, at) })
    }

    /// Whether nodes get what is told, whatever rules give: a NodePool's labels and taints are those of its nodes.
    fn is_on_nodes_anyway(&self) -> bool {
        self.declared.provisioner == Some(Provisioner::Karpenter)
    }

    /// What no node has.
    fn absent(&self, (field, key, effect): &Key) -> Option<Difference> {
        if self.is_on_nodes_anyway() {
            return None;
        }
        let at = (*field, key.as_str(), effect.map(|effect| effect.as_str()));
        self.told(at.0, at.1, at.2)?;
        Some(self.difference(Wrong::Unassigned, at))
    }
}
