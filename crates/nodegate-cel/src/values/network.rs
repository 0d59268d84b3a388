//! Addresses and networks, read as Go's `net/netip` reads them, because Kubernetes does (`k8s.io/apiserver/pkg/cel/library`, `ip.go` and
//! `cidr.go`).

use std::fmt;
use std::net::IpAddr;

/// Reads an address. IPv4 addresses as IPv6 ones (`::ffff:10.0.0.1`) and zones are none.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    let is_mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    (!is_mapped).then_some(address)
}

/// Whether packets to it leave the network of their sender (`IsGlobalUnicast`), which private addresses do.
pub(crate) fn is_global_unicast(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !is_broadcast && !is_special && !is_link_local_unicast(address)
}

/// Whether it is one of `169.254.0.0/16` or `fe80::/10`.
pub(crate) fn is_link_local_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Whether it is one of `224.0.0.0/24` or `ff02::/16`, with any flags.
pub(crate) fn is_link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    }
}

/// A network, with the address that it was written with: two are equal only if that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cidr {
    pub(crate) address: IpAddr,
    pub(crate) length: u8,
}

impl Cidr {
    /// Reads a network such as `10.0.0.0/8`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (written, length) = text.rsplit_once('/')?;
        let is_plain = length.bytes().all(|byte| byte.is_ascii_digit()) && (length == "0" || !length.starts_with('0'));
        let (address, length) = (address(written)?, length.parse::<u8>().ok().filter(|_| is_plain)?);
        let longest = if address.is_ipv4() { 32 } else { 128 };
        (length <= longest).then_some(Self { address, length })
    }

    /// The network with its first address.
    pub(crate) fn masked(self) -> Self {
        Self { address: self.first_of(self.address), ..self }
    }

    /// Whether the address is in it. No IPv6 address is in an IPv4 network.
    pub(crate) fn holds(self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && self.first_of(address) == self.first_of(self.address)
    }

    /// Whether all of the other network is in it.
    pub(crate) fn holds_all_of(self, other: Self) -> bool {
        self.length <= other.length && self.holds(other.address)
    }

    /// The first address of the network of this length that holds `address`.
    fn first_of(self, address: IpAddr) -> IpAddr {
        let length = u32::from(self.length);
        match address {
            IpAddr::V4(address) => {
                let host = u32::MAX.checked_shr(length).unwrap_or(0);
                IpAddr::V4((address.to_bits() & !host).into())
            }
            IpAddr::V6(address) => {
                let host = u128::MAX.checked_shr(length).unwrap_or(0);
                IpAddr::V6((address.to_bits() & !host).into())
            }
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}
