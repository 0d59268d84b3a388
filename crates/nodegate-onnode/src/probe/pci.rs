//! PCI functions in sysfs (`Documentation/ABI/testing/sysfs-bus-pci` of Linux).

use std::ffi::OsStr;
use std::path::Path;

use super::document::Unread;
use super::sysfs::{Sysfs, SysfsError};

/// The directory of all PCI functions.
pub(super) const DEVICES: &str = "bus/pci/devices";

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// Such as `0000:17:00.0`.
    pub(super) address: String,
    pub(super) vendor: u16,
    pub(super) device: u16,
    /// Class and subclass, such as 0x0302.
    pub(super) class: u16,
    /// The address of another function, the physical one, if this is a virtual one of SR-IOV.
    pub(super) physical: Option<String>,
    /// What the driver reports as memory, in bytes.
    pub(super) memory: Option<u64>,
}

/// All functions that can be read.
pub(super) fn functions(sysfs: &Sysfs, unread: &mut Vec<Unread>) -> Vec<Function> {
    let entries = match sysfs.entries(Path::new(DEVICES)) {
        Ok(entries) => entries,
        Err(problem) => {
            unread.push(Unread::new(DEVICES, &problem));
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for entry in &entries {
        match function(sysfs, entry) {
            Ok(function) => found.push(Function { memory: memory(sysfs, &function.address, unread), ..function }),
            Err((file, problem)) => {
                unread.push(Unread::new(format!("{DEVICES}/{}{file}", entry.to_string_lossy()), &problem));
            }
        }
    }
    found
}

/// One function, or the file that cannot be read.
fn function(sysfs: &Sysfs, entry: &OsStr) -> Result<Function, (&'static str, SysfsError)> {
    let address = entry.to_str().filter(|name| is_address(name)).ok_or(("", SysfsError::Name))?;
    let at = Path::new(DEVICES).join(address);
    let number = |file: &'static str, name: &str, digits| {
        sysfs.hexadecimal(&at.join(name), digits).map_err(|problem| (file, problem))
    };
    let class = number("/class", "class", 6)?;
    let low = |number: u32| u16::try_from(number & 0xffff).unwrap_or_default();
    Ok(Function {
        address: address.to_owned(),
        vendor: low(number("/vendor", "vendor", 4)?),
        device: low(number("/device", "device", 4)?),
        class: low(class >> 8),
        physical: sysfs.link_name(&at.join("physfn")).filter(|name| is_address(name) && name != address),
        memory: None,
    })
}

/// The memory that amdgpu reports (`Documentation/gpu/amdgpu/driver-misc.rst` of Linux), in bytes.
fn memory(sysfs: &Sysfs, address: &str, unread: &mut Vec<Unread>) -> Option<u64> {
    let file = format!("{DEVICES}/{address}/mem_info_vram_total");
    match sysfs.decimal(Path::new(&file)) {
        Ok(bytes) => bytes.filter(|bytes| *bytes > 0),
        Err(problem) => {
            unread.push(Unread::new(file, &problem));
            None
        }
    }
}

/// Whether this is an address such as `0000:17:00.0`.
pub(super) fn is_address(name: &str) -> bool {
    let hexadecimal = |part: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&part.len()) && part.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
    };
    let Some((slot, function)) = name.split_once('.') else { return false };
    let mut parts = slot.split(':');
    let (domain, bus, device) = (parts.next(), parts.next(), parts.next());
    domain.is_some_and(|domain| hexadecimal(domain, 4..=8))
        && bus.is_some_and(|bus| hexadecimal(bus, 2..=2))
        && device.is_some_and(|device| hexadecimal(device, 2..=2))
        && parts.next().is_none()
        && matches!(function.as_bytes(), [b'0'..=b'7'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_that_the_kernel_writes() {
        for name in ["0000:17:00.0", "10000:e1:1f.7"] {
            assert!(is_address(name), "{name}");
        }
        for name in ["", "0000:17:00", "0000:17:00.8", "0000:17:00.00", "17:00.0", "0000:17:00:00.0", "0000:1G:00.0"] {
            assert!(!is_address(name), "{name}");
        }
    }
}
