//! Functions of addresses and networks (`k8s.io/apiserver/pkg/cel/library`, `ip.go` and `cidr.go`).

use std::net::IpAddr;

use crate::fault::EvaluationError;
use crate::functions::{Function, Outcome, begin, function, method, unsuited};
use crate::values::network::{self, Cidr};
use crate::values::opaque::Opaque;
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    function("ip", &[Type::Text], Type::Ip, |steps, arguments| {
        Ok(Opaque::Ip(read_address(steps, "ip", arguments)?).into())
    }),
    function("isIP", &[Type::Text], Type::Bool, |steps, arguments| {
        Ok(Value::Bool(network::address(text(steps, "isIP", arguments)?).is_some()))
    }),
    function("ip.isCanonical", &[Type::Text], Type::Bool, |steps, arguments| {
        let written = text(steps, "ip.isCanonical", arguments)?;
        Ok(Value::Bool(read_address(steps, "ip.isCanonical", arguments)?.to_string() == written))
    }),
    method("family", &[Type::Ip], Type::Int, |_, arguments| {
        Ok(Value::Int(if address("family", arguments)?.is_ipv4() { 4 } else { 6 }))
    }),
    method("isLoopback", &[Type::Ip], Type::Bool, |_, arguments| {
        Ok(Value::Bool(address("isLoopback", arguments)?.is_loopback()))
    }),
    method("isUnspecified", &[Type::Ip], Type::Bool, |_, arguments| {
        Ok(Value::Bool(address("isUnspecified", arguments)?.is_unspecified()))
    }),
    method("isLinkLocalMulticast", &[Type::Ip], Type::Bool, |_, arguments| {
        Ok(Value::Bool(network::is_link_local_multicast(address("isLinkLocalMulticast", arguments)?)))
    }),
    method("isLinkLocalUnicast", &[Type::Ip], Type::Bool, |_, arguments| {
        Ok(Value::Bool(network::is_link_local_unicast(address("isLinkLocalUnicast", arguments)?)))
    }),
    method("isGlobalUnicast", &[Type::Ip], Type::Bool, |_, arguments| {
        Ok(Value::Bool(network::is_global_unicast(address("isGlobalUnicast", arguments)?)))
    }),
    function("cidr", &[Type::Text], Type::Cidr, |steps, arguments| {
        Ok(Opaque::Cidr(read_network(steps, "cidr", arguments)?).into())
    }),
    function("isCIDR", &[Type::Text], Type::Bool, |steps, arguments| {
        Ok(Value::Bool(Cidr::parse(text(steps, "isCIDR", arguments)?).is_some()))
    }),
    method("containsIP", &[Type::Cidr, Type::Any], Type::Bool, contains_ip),
    method("containsCIDR", &[Type::Cidr, Type::Any], Type::Bool, contains_cidr),
    method("prefixLength", &[Type::Cidr], Type::Int, |_, arguments| {
        Ok(Value::Int(cidr("prefixLength", arguments)?.length.into()))
    }),
    method("masked", &[Type::Cidr], Type::Cidr, |_, arguments| {
        Ok(Opaque::Cidr(cidr("masked", arguments)?.masked()).into())
    }),
    method("ip", &[Type::Cidr], Type::Ip, |_, arguments| Ok(Opaque::Ip(cidr("ip", arguments)?.address).into())),
];

fn text<'v>(steps: &mut Steps, name: &str, arguments: &'v [Value<'_>]) -> Result<&'v str, EvaluationError> {
    let [Value::Text(text)] = arguments else { return Err(unsuited(name, arguments)) };
    steps.take(20)?;
    steps.bytes(text.len())?;
    Ok(text)
}

fn read_address(steps: &mut Steps, name: &str, arguments: &[Value<'_>]) -> Result<IpAddr, EvaluationError> {
    let text = text(steps, name, arguments)?;
    network::address(text).ok_or_else(|| {
        EvaluationError::failed(format!(
            "{name}(): {:?} is not an IP address; neither IPv4 addresses as IPv6 ones nor zones are",
            begin(text)
        ))
    })
}

fn read_network(steps: &mut Steps, name: &str, arguments: &[Value<'_>]) -> Result<Cidr, EvaluationError> {
    let text = text(steps, name, arguments)?;
    let fault = || EvaluationError::failed(format!("{name}(): {:?} is not a network such as 10.0.0.0/8", begin(text)));
    Cidr::parse(text).ok_or_else(fault)
}

fn address(name: &str, arguments: &[Value<'_>]) -> Result<IpAddr, EvaluationError> {
    match arguments {
        [Value::Opaque(opaque)] if let Opaque::Ip(address) = **opaque => Ok(address),
        _ => Err(unsuited(name, arguments)),
    }
}

fn cidr(name: &str, arguments: &[Value<'_>]) -> Result<Cidr, EvaluationError> {
    match arguments {
        [Value::Opaque(opaque)] if let Opaque::Cidr(network) = **opaque => Ok(network),
        _ => Err(unsuited(name, arguments)),
    }
}

/// The network that a method looks into.
fn holder<'v, 'a>(name: &str, arguments: &'v [Value<'a>]) -> Result<(Cidr, &'v [Value<'a>]), EvaluationError> {
    let (network, held) = arguments.split_at_checked(1).ok_or_else(|| unsuited(name, arguments))?;
    Ok((cidr(name, network)?, held))
}

fn contains_ip<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let (network, held) = holder("containsIP", arguments)?;
    let read = matches!(held, [Value::Text(_)]);
    let held = if read { read_address(steps, "containsIP", held)? } else { address("containsIP", held)? };
    Ok(Value::Bool(network.holds(held)))
}

fn contains_cidr<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let (network, held) = holder("containsCIDR", arguments)?;
    let read = matches!(held, [Value::Text(_)]);
    let held = if read { read_network(steps, "containsCIDR", held)? } else { cidr("containsCIDR", held)? };
    Ok(Value::Bool(network.holds_all_of(held)))
}
