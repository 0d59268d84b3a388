//! The table of cloud instance types with GPUs. The data and its sources are in `instance-types.csv`.

use std::collections::HashMap;
use std::sync::LazyLock;

const TABLE: &str = include_str!("instance-types.csv");

/// The GPUs of an instance type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InstanceType {
    pub(super) vendor: &'static str,
    pub(super) model: &'static str,
    pub(super) count: u32,
}

static BY_NAME: LazyLock<HashMap<String, InstanceType>> = LazyLock::new(|| rows().collect());

/// Rows as (lower-case name, facts): clouds spell some names in both cases.
fn rows() -> impl Iterator<Item = (String, InstanceType)> {
    TABLE.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).skip(1).filter_map(|line| {
        let mut fields = line.split(',').map(str::trim);
        let (_provider, name) = (fields.next()?, fields.next()?);
        let (vendor, model) = (fields.next()?, fields.next()?);
        Some((name.to_ascii_lowercase(), InstanceType { vendor, model, count: fields.next()?.parse().ok()? }))
    })
}

/// The facts of an instance type.
pub(super) fn find(name: &str) -> Option<InstanceType> {
    BY_NAME.get(name).or_else(|| BY_NAME.get(&name.to_ascii_lowercase())).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_complete() {
        let written = TABLE.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).count() - 1;
        assert_eq!(rows().count(), written);
        assert_eq!(BY_NAME.len(), written, "an instance type is listed twice");
        for (name, found) in rows() {
            assert!(super::super::VENDORS.contains(&found.vendor), "{name}: {}", found.vendor);
            assert!(found.count > 0 && found.model == found.model.to_lowercase(), "{name}");
        }
    }
}
