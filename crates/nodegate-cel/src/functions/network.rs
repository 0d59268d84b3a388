//! Functions of addresses and networks (`k8s.io/apiserver/pkg/cel/library`, `ip.go` and `cidr.go`).

use std::net::IpAddr;

use crate::fault::EvaluationError;
use crate::functions::{Form, Function, Own, Run, unsuited};
use crate::values::network::{self, Cidr};
use crate::values::opaque::Opaque;
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::value::Value;

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

const fn function(name: &'static str, returns: Type, run: Own) -> Function {
    Function::new(name, Form::Function, &[Type::Text], returns, Run::Own(run))
}

const fn method(name: &'static str, parameters: &'static [Type], returns: Type, run: Own) -> Function {
    Function::new(name, Form::Method, parameters, returns, Run::Own(run))
}

pub(super) const FUNCTIONS: &[Function] = &[
    function("ip", Type::Ip, |steps, arguments| Ok(Opaque::Ip(read_address(steps, "ip", arguments)?).into())),
    function("isIP", Type::Bool, |steps, arguments| {
        Ok(Value::Bool(network::address(text(steps, "isIP", arguments)?).is_some()))
    }),
    function("ip.isCanonical", Type::Bool, |steps, arguments| {
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
    function("cidr", Type::Cidr, |steps, arguments| Ok(Opaque::Cidr(read_network(steps, "cidr", arguments)?).into())),
    function("isCIDR", Type::Bool, |steps, arguments| {
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

/// As much of a text as a message repeats.
fn begin(text: &str) -> String {
    text.chars().take(80).collect()
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

fn contains_ip<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [network, held] = arguments else { return Err(unsuited("containsIP", arguments)) };
    let network = cidr("containsIP", std::slice::from_ref(network))?;
    let held = match held {
        Value::Text(_) => read_address(steps, "containsIP", std::slice::from_ref(held))?,
        _ => address("containsIP", std::slice::from_ref(held))?,
    };
    Ok(Value::Bool(network.holds(held)))
}

fn contains_cidr<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [network, held] = arguments else { return Err(unsuited("containsCIDR", arguments)) };
    let network = cidr("containsCIDR", std::slice::from_ref(network))?;
    let held = match held {
        Value::Text(_) => read_network(steps, "containsCIDR", std::slice::from_ref(held))?,
        _ => cidr("containsCIDR", std::slice::from_ref(held))?,
    };
    Ok(Value::Bool(network.holds_all_of(held)))
}
