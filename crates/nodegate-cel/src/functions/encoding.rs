//! Base64 (`ext/encoders.go` of cel-go).

use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};

use crate::fault::EvaluationError;
use crate::functions::{Function, Outcome, function, unsuited};
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    function("base64.encode", &[Type::Bytes], Type::Text, encode),
    function("base64.decode", &[Type::Text], Type::Bytes, decode),
];

/// Reads texts with and without padding.
const READER: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

fn encode<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Bytes(bytes)] = arguments else { return Err(unsuited("base64.encode", arguments)) };
    steps.bytes(2 * bytes.len())?;
    Ok(Value::from(STANDARD.encode(bytes)))
}

fn decode<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Text(text)] = arguments else { return Err(unsuited("base64.decode", arguments)) };
    steps.bytes(text.len())?;
    let bytes = READER.decode(text.as_bytes());
    let bytes = bytes.map_err(|fault| EvaluationError::failed(format!("base64.decode(): {fault}")))?;
    Ok(Value::Bytes(Arc::from(bytes)))
}
