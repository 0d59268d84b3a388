//! What `nodegate probe` prints for other programs. Fields are added, never renamed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::sysfs::SysfsError;

/// The accelerators of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Accelerators and GPU interconnects of a known product, sorted by bus and address.
    pub devices: Vec<Device>,
    /// Accelerators whose product is not known.
    pub unknown: Vec<Device>,
    /// What could not be read; devices may be missing.
    pub unread: Vec<Unread>,
    /// The labels that follow from the devices.
    pub labels: BTreeMap<String, String>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// How it is attached.
    pub bus: Bus,
    /// Its address on the bus: `0000:17:00.0` for PCI, the port for USB, the name of the class device otherwise.
    pub address: String,
    /// What it is.
    pub kind: Kind,
    /// The ID of the vendor, four hexadecimal digits, if the bus has vendors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// The ID of the device, four hexadecimal digits, if the bus has such IDs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The PCI class and subclass, four hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The name in the PCI ID Repository, with the vendor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The short name of the product, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short: Option<String>,
    /// How many devices it counts as: 1, or 0 for a virtual function whose physical function is on this machine.
    pub count: u32,
    /// Whether it is a virtual function of SR-IOV.
    #[serde(rename = "virtual")]
    pub is_virtual: bool,
    /// Its own memory in bytes, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// How a device is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Bus {
    /// PCI.
    Pci,
    /// USB.
    Usb,
    /// Part of the system, without a bus that lists it.
    Platform,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// A GPU with its own memory, for graphics or computing.
    Gpu,
    /// Another accelerator.
    Accelerator,
    /// A switch between GPUs.
    Switch,
    /// An accelerator by its class.
    Unknown,
}

/// What could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Unread {
    /// The path below the root of sysfs.
    pub path: String,
    /// Why.
    pub problem: String,
}

impl Unread {
    pub(super) fn new(path: impl Into<String>, problem: &SysfsError) -> Self {
        Self { path: path.into(), problem: problem.to_string() }
    }
}
