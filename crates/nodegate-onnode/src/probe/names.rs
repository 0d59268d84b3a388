//! Names of PCI devices, from the PCI ID Repository (<https://pci-ids.ucw.cz>). `pci.ids` is its unmodified file.

use std::path::Path;

use pciid_parser::Database;

const PCI_IDS: &[u8] = include_bytes!("pci.ids");

/// A `pci.ids` file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NamesError(String);

/// The names of vendors and devices.
pub struct Names(Database);

impl Names {
    /// The names that nodegate was built with.
    ///
    /// # Errors
    /// Returns an error if the file does not parse, which is a bug in nodegate.
    pub fn built_in() -> Result<Self, NamesError> {
        Self::parse(PCI_IDS)
    }

    /// The names of another `pci.ids` file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, does not parse, or has no vendors.
    pub fn of_file(path: &Path) -> Result<Self, NamesError> {
        let file = std::fs::read(path).map_err(|error| NamesError(error.to_string()))?;
        Self::parse(&file)
    }

    fn parse(text: &[u8]) -> Result<Self, NamesError> {
        let names = Database::parse_db(text).map_err(|error| NamesError(error.to_string()))?;
        if names.vendors.is_empty() {
            return Err(NamesError("it has no vendors, so it is not a pci.ids file".to_owned()));
        }
        Ok(Self(names))
    }

    pub(super) fn vendor(&self, vendor: u16) -> Option<&str> {
        Some(self.0.vendors.get(&vendor)?.name.trim())
    }

    pub(super) fn device(&self, vendor: u16, device: u16) -> Option<&str> {
        Some(self.0.vendors.get(&vendor)?.devices.get(&device)?.name.trim())
    }
}
