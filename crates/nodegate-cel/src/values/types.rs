//! The types that can be known before an expression is evaluated.
//!
//! Checking them turns the most frequent mistakes (text compared with a number, text added to
//! an int) into errors at load, where they would otherwise make a condition unknown for ever.

use crate::syntax::Operator;
use crate::values::opaque::Opaque;
use crate::values::value::Value;

/// What is known of the type of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// Nothing.
    Any,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    List,
    Map,
    Optional,
    Duration,
    Timestamp,
    Quantity,
    Semver,
    Ip,
    Cidr,
    Url,
    Format,
}

impl Type {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Any => "anything",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::List => "list",
            Self::Map => "map",
            Self::Optional => "optional",
            Self::Duration => "duration",
            Self::Timestamp => "timestamp",
            Self::Quantity => "quantity",
            Self::Semver => "semver",
            Self::Ip => "IP address",
            Self::Cidr => "CIDR",
            Self::Url => "URL",
            Self::Format => "format",
        }
    }

    /// The name with its article.
    pub(crate) fn noun(self) -> String {
        noun(self.name())
    }

    fn is_number(self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    /// Whether something of type `found` may turn out to be of this type.
    pub(crate) fn may_be(self, found: Type) -> bool {
        self == found || self == Self::Any || found == Self::Any
    }

    /// Whether `value` is of this type.
    pub(crate) fn admits(self, value: &Value<'_>) -> bool {
        self == Self::Any || self == Self::of(value)
    }

    /// The type of a value.
    pub(crate) fn of(value: &Value<'_>) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Bool,
            Value::Int(_) => Self::Int,
            Value::Uint(_) => Self::Uint,
            Value::Double(_) => Self::Double,
            Value::Text(_) => Self::Text,
            Value::Bytes(_) => Self::Bytes,
            Value::List(_) => Self::List,
            Value::Map(_) => Self::Map,
            Value::Optional(_) => Self::Optional,
            Value::Duration(_) => Self::Duration,
            Value::Timestamp(_) => Self::Timestamp,
            Value::Opaque(opaque) => match **opaque {
                Opaque::Quantity(_) => Self::Quantity,
                Opaque::Semver(_) => Self::Semver,
                Opaque::Ip(_) => Self::Ip,
                Opaque::Cidr(_) => Self::Cidr,
                Opaque::Url(_) => Self::Url,
                Opaque::Format(_) => Self::Format,
            },
            Value::Unread(_) => Self::Any,
        }
    }
}

impl Value<'_> {
    /// What kind of value this is, with its article.
    pub(crate) fn noun(&self) -> String {
        Type::of(self).noun()
    }
}

/// The name of a type with its article.
pub(crate) fn noun(name: &str) -> String {
    match name.chars().next() {
        _ if matches!(name, "anything" | "null" | "bytes") => name.to_owned(),
        Some('i' | 'I' | 'o') => format!("an {name}"),
        _ => format!("a {name}"),
    }
}

/// The type of `left operator right`, or what is wrong with it.
pub(crate) fn of_binary(operator: Operator, left: Type, right: Type) -> Result<Type, String> {
    use Operator::{
        Add, Divide, Equal, Greater, GreaterOrEqual, In, Less, LessOrEqual, Multiply, NotEqual, Remainder, Subtract,
    };
    let unknown = left == Type::Any || right == Type::Any;
    let fits = match operator {
        Equal | NotEqual => unknown || left == right || (left.is_number() && right.is_number()),
        Less | LessOrEqual | Greater | GreaterOrEqual => {
            may_compare(left) && may_compare(right) && {
                unknown || left == right || (left.is_number() && right.is_number())
            }
        }
        In => matches!(right, Type::Any | Type::List | Type::Map),
        Add | Subtract | Multiply | Divide | Remainder => {
            let (left_fits, right_fits) = (may_calculate(operator, left), may_calculate(operator, right));
            let time = |of: Type| matches!(of, Type::Duration | Type::Timestamp);
            left_fits && right_fits && (unknown || left == right || (time(left) && time(right)))
        }
    };
    if !fits {
        let (symbol, hint) = (operator.symbol(), hint(operator, left, right));
        return Err(format!("`{symbol}` cannot take {} and {}{hint}", left.noun(), right.noun()));
    }
    Ok(match operator {
        Add | Subtract | Multiply | Divide | Remainder => result_of_calculation(operator, left, right),
        _ => Type::Bool,
    })
}

fn may_compare(found: Type) -> bool {
    use Type::{Any, Bool, Bytes, Duration, Text, Timestamp};
    found.is_number() || matches!(found, Any | Bool | Bytes | Duration | Text | Timestamp)
}

fn may_calculate(operator: Operator, found: Type) -> bool {
    use Type::{Any, Bytes, Double, Duration, List, Text, Timestamp};
    match operator {
        Operator::Add => found.is_number() || matches!(found, Any | Bytes | Duration | List | Text | Timestamp),
        Operator::Subtract => found.is_number() || matches!(found, Any | Duration | Timestamp),
        Operator::Remainder => found == Any || (found.is_number() && found != Double),
        _ => found == Any || found.is_number(),
    }
}

fn result_of_calculation(operator: Operator, left: Type, right: Type) -> Type {
    use Type::{Any, Bytes, Double, Duration, Int, List, Text, Timestamp, Uint};
    match (left, right) {
        (Timestamp, Timestamp) if operator == Operator::Subtract => Duration,
        (Timestamp, Duration) | (Duration, Timestamp) => Timestamp,
        // These go with nothing but their own type.
        (Any, known @ (Bytes | Double | Int | List | Text | Uint))
        | (known @ (Bytes | Double | Int | List | Text | Uint), Any) => known,
        (left, right) if left == right => left,
        _ => Any,
    }
}

fn hint(operator: Operator, left: Type, right: Type) -> &'static str {
    let is = |one: Type| left == one || right == one;
    let number = left.is_number() || right.is_number();
    match operator {
        _ if is(Type::Optional) => "; take the value out of the optional with .orValue(…)",
        _ if is(Type::Quantity) => "; compare quantities with .isGreaterThan(…), .isLessThan(…) or .compareTo(…)",
        _ if is(Type::Semver) => "; compare versions with .isGreaterThan(…), .isLessThan(…) or .compareTo(…)",
        Operator::Add if is(Type::Text) => "; convert the value with string(…)",
        Operator::In if is(Type::Text) => "; look for text in text with .contains(…)",
        _ if is(Type::Null) => "; ask for what may be absent with \"key\" in … or has(…)",
        _ if is(Type::Text) && number => "; convert the string with int(…), or compare quantities with quantity(…)",
        _ if left.is_number() && right.is_number() => "; make them the same with int(…) or double(…)",
        _ => "",
    }
}
