//! The table of products. The data and its sources are in `products.csv`.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::document::{Bus, Kind};

const TABLE: &str = include_str!("products.csv");

/// What is known of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Product {
    pub(super) kind: Kind,
    pub(super) short: Option<&'static str>,
    pub(super) memory_mib: Option<u64>,
}

static BY_ID: LazyLock<HashMap<(Bus, u16, u16), Product>> = LazyLock::new(|| rows().collect());

fn rows() -> impl Iterator<Item = ((Bus, u16, u16), Product)> {
    TABLE.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).skip(1).filter_map(|line| {
        let mut fields = line.split(',');
        let bus = match fields.next()? {
            "pci" => Bus::Pci,
            "usb" => Bus::Usb,
            _ => return None,
        };
        let mut id = || u16::from_str_radix(fields.next()?, 16).ok();
        let (vendor, device) = (id()?, id()?);
        let kind = match fields.next()? {
            "gpu" => Kind::Gpu,
            "accelerator" => Kind::Accelerator,
            "switch" => Kind::Switch,
            "unknown" => Kind::Unknown,
            _ => return None,
        };
        let (short, memory) = (fields.next()?, fields.next()?);
        let memory_mib = if memory.is_empty() { None } else { Some(memory.parse().ok()?) };
        fields.next().filter(|source| !source.is_empty())?;
        let product = Product { kind, short: (!short.is_empty()).then_some(short), memory_mib };
        Some(((bus, vendor, device), product))
    })
}

/// The product with these IDs.
pub(super) fn find(bus: Bus, vendor: u16, device: u16) -> Option<Product> {
    BY_ID.get(&(bus, vendor, device)).copied()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::probe::Names;

    #[test]
    fn every_row_is_complete_and_once_in_the_table() {
        let written = TABLE.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).count() - 1;
        assert_eq!(rows().count(), written);
        assert_eq!(BY_ID.len(), written);
    }

    #[test]
    fn ids_whose_source_is_not_a_driver_are_in_pci_ids() {
        let names = Names::built_in().unwrap();
        for line in
            TABLE.lines().filter(|line| line.starts_with("pci,") && !line.ends_with(",jax") && !line.ends_with(",qaic"))
        {
            let id = |at| u16::from_str_radix(line.split(',').nth(at).unwrap(), 16).unwrap();
            assert!(names.device(id(1), id(2)).is_some(), "{line}");
        }
    }
}
