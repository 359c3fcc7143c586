//! The parameters of a call, parsed as strictly as in geth: a method refuses unknown parameters.

mod block;
mod bounded;
mod strict;

use alloy_primitives::B256;
use alloy_rpc_types_eth::BlockNumberOrTag;
use jsonrpsee_types::Params;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use slipstream_base::json_list;

pub(super) use self::{
    block::BlockParam,
    bounded::AtMost,
    strict::{Slot, Strict, Text},
};
use super::errors::RpcError;

/// A block by number or tag only.
pub(super) type Number = Strict<BlockNumberOrTag>;
/// A block by hash only.
pub(super) type Hash = Strict<B256>;

/// Parses all parameters of a call into a tuple with one element for each that the method knows. An `Option` may be
/// omitted or null.
///
/// # Errors
/// [`RpcError::InvalidParams`] if a parameter is missing, wrong or surplus. The error names its position, and the field
/// in it.
pub(super) fn args<P: Positional>(params: &Params<'_>) -> Result<P, RpcError> {
    // As in geth, null means no parameters.
    let text = params.as_str().filter(|text| *text != "null").unwrap_or("[]");
    let list =
        json_list::read(text, P::COUNT).map_err(|_| RpcError::InvalidParams("non-array args".into()))?;
    if list.len > P::COUNT {
        return Err(RpcError::InvalidParams(format!("too many arguments, want at most {}", P::COUNT)));
    }
    P::read(&list.first)
}

/// Positional parameters.
pub(super) trait Positional: Sized {
    /// The number of parameters that a method knows.
    const COUNT: usize;

    fn read(values: &[&RawValue]) -> Result<Self, RpcError>;
}

macro_rules! positional {
    ($count:literal $(, $name:ident $position:literal)*) => {
        impl<$($name: DeserializeOwned),*> Positional for ($($name,)*) {
            const COUNT: usize = $count;

            fn read(_values: &[&RawValue]) -> Result<Self, RpcError> {
                Ok(($(argument::<$name>(_values, $position)?,)*))
            }
        }
    };
}

positional!(0);
positional!(1, A 0);
positional!(2, A 0, B 1);
positional!(3, A 0, B 1, C 2);
positional!(4, A 0, B 1, C 2, D 3);
positional!(5, A 0, B 1, C 2, D 3, E 4);

fn argument<T: DeserializeOwned>(values: &[&RawValue], position: usize) -> Result<T, RpcError> {
    let text = values.get(position).map_or("null", |value| value.get());
    part(text, "", position).map_err(|error| match text {
        "null" => RpcError::InvalidParams(format!("missing value for required argument {position}")),
        _ => error,
    })
}

/// Parses the part of an argument that lies at `place` in it.
///
/// # Errors
/// [`RpcError::InvalidParams`] that names the position, and the faulty place in the argument.
pub(super) fn part<T: DeserializeOwned>(text: &str, place: &str, position: usize) -> Result<T, RpcError> {
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = match (place, &*error.path().to_string()) {
            ("", path) => path.to_owned(),
            (place, ".") => place.to_owned(),
            (place, path) => format!("{place}.{path}"),
        };
        let cause = error.into_inner().to_string();
        // The line and column refer to a part that the caller never sees by itself.
        let cause = cause.rsplit_once(" at line ").map_or(&*cause, |(cause, _)| cause);
        RpcError::InvalidParams(match &*path {
            "." => format!("invalid argument {position}: {cause}"),
            path => format!("invalid argument {position}: {path}: {cause}"),
        })
    })
}

#[cfg(test)]
mod tests {
    use alloy_primitives::Address;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Named {
        #[serde(rename = "inner")]
        _inner: Vec<Strict<u64>>,
    }

    fn refusal<P: Positional>(text: &str) -> String {
        match args::<P>(&Params::new(Some(text))) {
            Ok(_) => panic!("{text} was taken"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn positions_are_read_and_counted() {
        let read =
            |text| args::<(Strict<u64>, Option<bool>)>(&Params::new(text)).map(|(one, two)| (one.0, two));
        assert_eq!(read(Some(r#"["0x7"]"#)).unwrap(), (7, None));
        assert_eq!(read(Some(r#"["0x7", null]"#)).unwrap(), (7, None));
        assert_eq!(read(Some(r#" ["0x7", true] "#)).unwrap(), (7, Some(true)));
        for nothing in [None, Some("[]"), Some("null")] {
            assert!(args::<()>(&Params::new(nothing)).is_ok());
            assert_eq!(read(nothing).unwrap_err().to_string(), "missing value for required argument 0");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        type One = (Strict<u64>,);
        for (text, expected) in [
            (r#"["0x1", "0x2"]"#, "too many arguments, want at most 1"),
            (r#"["0x1", null]"#, "too many arguments, want at most 1"),
            (r#"{"a": 1}"#, "non-array args"),
            ("7", "non-array args"),
            ("[null]", "missing value for required argument 0"),
            (r#"["0x"]"#, "invalid argument 0: hex string \"0x\""),
        ] {
            assert_eq!(refusal::<One>(text), expected);
        }
        assert!(
            refusal::<One>("[5]")
                .starts_with("invalid argument 0: invalid type: integer `5`, expected a quantity")
        );
        assert_eq!(refusal::<()>("[1]"), "too many arguments, want at most 0");
        assert_eq!(
            refusal::<(Strict<Address>, Named)>(
                r#"["0x0101010101010101010101010101010101010101", {"inner": ["0x1", "0x01"]}]"#
            ),
            "invalid argument 1: inner[1]: hex number with leading zero digits"
        );
    }
}
