//! Which devices are accelerators, and what they are.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::Path;

use super::document::{Bus, Device, Kind, Unread};
use super::names::Names;
use super::pci::{self, Function, is_address};
use super::products::{self, Product};
use super::sysfs::{Sysfs, SysfsError};
use nodegate_policy::gpu::product::{short_name, stated_memory_mib};

const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;
const INTEL: u16 = 0x8086;

/// Display controllers: VGA, 3D and other ones.
const DISPLAY: [u16; 3] = [0x0300, 0x0302, 0x0380];
/// 3D controllers, which drive no screen.
const CONTROLLER_3D: u16 = 0x0302;
/// The base class of processing accelerators.
const ACCELERATOR: u16 = 0x12;

/// Chips of AMD that are not part of a processor, as the PCI ID Repository calls them.
const AMD_CHIPS: [&str; 11] = [
    "Navi ",
    "Vega 10",
    "Vega 12",
    "Vega 20",
    "Arcturus",
    "Aldebaran",
    "Aqua Vanjaram",
    "Ellesmere",
    "Baffin",
    "Lexa",
    "Polaris",
];
/// The same of Intel.
const INTEL_CHIPS: [&str; 5] = ["DG1", "DG2", "Battlemage", "Ponte Vecchio", "ATS-M"];

const MIB: u64 = 1024 * 1024;

/// All accelerators, sorted by bus and address.
pub(super) fn all(sysfs: &Sysfs, names: &Names, unread: &mut Vec<Unread>) -> Vec<Device> {
    let functions = pci::functions(sysfs, unread);
    let mut devices: Vec<Device> = functions.iter().filter_map(|function| on_pci(function, names)).collect();
    devices.extend(on_usb(sysfs, unread));
    let listed: BTreeSet<String> = devices.iter().map(|device| device.address.clone()).collect();
    let others: HashMap<&str, &Function> = functions
        .iter()
        .filter(|function| !listed.contains(&function.address))
        .map(|function| (function.address.as_str(), function))
        .collect();
    devices.extend(by_driver(sysfs, &listed, unread, |address| {
        // No class of PCI says so, but a driver for accelerators runs it.
        others.get(address).map(|function| described(function, names, Kind::Unknown))
    }));
    devices.sort_by(|one, other| (one.bus, &one.address).cmp(&(other.bus, &other.address)));
    // A driver may register a function more than once.
    devices.dedup_by(|one, other| (one.bus, &one.address) == (other.bus, &other.address));
    devices
}

/// The device that a PCI function is; `None` if it is no accelerator.
fn on_pci(function: &Function, names: &Names) -> Option<Device> {
    let product = products::find(Bus::Pci, function.vendor, function.device);
    let by_class = || kind(function, names.device(function.vendor, function.device));
    let kind = product.map(|product| product.kind).or_else(by_class)?;
    Some(described(function, names, kind))
}

/// A function that is a device of this kind.
fn described(function: &Function, names: &Names, kind: Kind) -> Device {
    let name = names.device(function.vendor, function.device);
    let product = products::find(Bus::Pci, function.vendor, function.device);
    let marketing = (kind == Kind::Gpu).then(|| in_brackets(name?)).flatten();
    let short = match product.and_then(|product| product.short) {
        Some(short) => Some(short.to_owned()),
        None => marketing.and_then(short_name),
    };
    let is_guest =
        name.is_some_and(|name| [" VF]", " MxGPU]", "Virtual Function"].iter().any(|end| name.ends_with(end)));
    let is_virtual = function.physical.is_some() || is_guest;
    let known_mib = || {
        // A virtual function has a part of the memory.
        product
            .and_then(|product| product.memory_mib)
            .or_else(|| marketing.and_then(stated_memory_mib))
            .filter(|_| !is_virtual)
    };
    Device {
        bus: Bus::Pci,
        address: function.address.clone(),
        kind,
        vendor: Some(format!("{:04x}", function.vendor)),
        device: Some(format!("{:04x}", function.device)),
        class: Some(format!("{:04x}", function.class)),
        name: full_name(names.vendor(function.vendor), name),
        short,
        count: u32::from(function.physical.is_none()),
        is_virtual,
        memory_bytes: function.memory.or_else(|| known_mib()?.checked_mul(MIB)),
    }
}

/// What a function is by its vendor, class and chip; `None` if it is no accelerator.
fn kind(function: &Function, name: Option<&str>) -> Option<Kind> {
    let is_display = DISPLAY.contains(&function.class);
    let is_accelerator = function.class >> 8 == ACCELERATOR;
    let is_chip = |chips: &[&str]| name.is_some_and(|name| chips.iter().any(|chip| name.starts_with(chip)));
    match function.vendor {
        NVIDIA if is_display => Some(Kind::Gpu),
        AMD if (is_display || is_accelerator) && is_chip(&AMD_CHIPS) => Some(Kind::Gpu),
        INTEL if is_display && is_chip(&INTEL_CHIPS) => Some(Kind::Gpu),
        // Graphics of a processor have names. What has none is newer than the names.
        AMD | INTEL if is_display => name.is_none().then_some(Kind::Unknown),
        _ if is_accelerator || function.class == CONTROLLER_3D => Some(Kind::Unknown),
        _ => None,
    }
}

/// The name of the product in a name such as `GH100 [H100 SXM5 80GB]`.
fn in_brackets(name: &str) -> Option<&str> {
    Some(name.split_once('[')?.1.strip_suffix(']')?.trim())
}

fn full_name(vendor: Option<&str>, device: Option<&str>) -> Option<String> {
    match (vendor, device) {
        (Some(vendor), Some(device)) => Some(format!("{vendor} {device}")),
        (vendor, _) => vendor.map(str::to_owned),
    }
}

/// USB devices of the table (`Documentation/ABI/stable/sysfs-bus-usb` of Linux).
fn on_usb(sysfs: &Sysfs, unread: &mut Vec<Unread>) -> Vec<Device> {
    let number = |entry: &Path, file: &'static str| -> Result<u16, Fault> {
        let number = sysfs.hexadecimal(&entry.join(&file[1..]), 4).map_err(|problem| (file, problem))?;
        Ok(u16::try_from(number).unwrap_or_default())
    };
    each(sysfs, "bus/usb/devices", unread, |name, entry| {
        let vendor = match number(entry, "/idVendor") {
            // Interfaces of devices have no IDs.
            Err((_, SysfsError::Missing)) => return Ok(None),
            vendor => vendor?,
        };
        let device = number(entry, "/idProduct")?;
        let Some(Product { kind, short, memory_mib }) = products::find(Bus::Usb, vendor, device) else {
            return Ok(None);
        };
        Ok(Some(Device {
            vendor: Some(format!("{vendor:04x}")),
            device: Some(format!("{device:04x}")),
            short: short.map(str::to_owned),
            memory_bytes: memory_mib.and_then(|mib| mib.checked_mul(MIB)),
            ..without_ids(Bus::Usb, name, kind)
        }))
    })
}

/// Devices of the classes `apex` (Edge TPUs) and `accel` that no bus has listed. `on_pci` describes a PCI function.
fn by_driver(
    sysfs: &Sysfs,
    listed: &BTreeSet<String>,
    unread: &mut Vec<Unread>,
    on_pci: impl Fn(&str) -> Option<Device>,
) -> Vec<Device> {
    let mut found = Vec::new();
    for (class, kind, short) in
        [("class/apex", Kind::Accelerator, Some("edgetpu")), ("class/accel", Kind::Unknown, None)]
    {
        found.extend(each(sysfs, class, unread, |name, entry| {
            let target = sysfs.resolve(&entry.join("device")).map_err(|problem| ("/device", problem))?;
            let on_bus = target.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if listed.contains(on_bus) {
                return Ok(None);
            }
            if is_address(on_bus) {
                // A function that could not be read is in `unread` already.
                return Ok(on_pci(on_bus).map(|device| Device { short: short.map(str::to_owned), kind, ..device }));
            }
            Ok(Some(Device { short: short.map(str::to_owned), ..without_ids(Bus::Platform, name, kind) }))
        }));
    }
    found
}

/// The file of an entry that could not be read, with a slash, and why; no file stands for the entry itself.
type Fault = (&'static str, SysfsError);

/// Visits the entries of a directory. `visit` gets the name and the path.
fn each(
    sysfs: &Sysfs,
    directory: &str,
    unread: &mut Vec<Unread>,
    visit: impl Fn(&str, &Path) -> Result<Option<Device>, Fault>,
) -> Vec<Device> {
    let entries = match sysfs.entries(Path::new(directory)) {
        Ok(entries) => entries,
        Err(problem) => {
            unread.push(Unread::new(directory, &problem));
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for entry in &entries {
        let is_plain = |name: &&str| name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.:".contains(&c));
        let visited = match entry.to_str().filter(is_plain) {
            Some(name) => visit(name, &Path::new(directory).join(name)),
            None => Err(("", SysfsError::Name)),
        };
        match visited {
            Ok(device) => found.extend(device),
            Err((file, problem)) => {
                unread.push(Unread::new(format!("{directory}/{}{file}", entry.to_string_lossy()), &problem));
            }
        }
    }
    found
}

fn without_ids(bus: Bus, address: &str, kind: Kind) -> Device {
    Device {
        bus,
        address: address.to_owned(),
        kind,
        vendor: None,
        device: None,
        class: None,
        name: None,
        short: None,
        count: 1,
        is_virtual: false,
        memory_bytes: None,
    }
}
