//! The envelope that JSON-RPC 2.0 puts around methods, parameters and results.

use std::borrow::Cow;

use jsonrpsee_types::ErrorObjectOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use slipstream_rpc::{Lane, Table};

/// The id of the answer to a request whose id cannot be repeated.
pub(super) const NO_ID: &str = "null";

/// One request of a body.
pub(super) enum Request<'a> {
    /// A call to answer under this id.
    Call(&'a str, Call<'a>),
    /// A call to execute without an answer.
    Notification(Call<'a>),
    /// Not a valid request; the error is sent under this id.
    Invalid(&'a str),
}

/// A request's method and parameters.
pub(super) struct Call<'a> {
    pub(super) method: Cow<'a, str>,
    pub(super) params: Option<&'a RawValue>,
}

/// The members of the object as raw JSON; unknown members are ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Members<'a> {
    #[serde(borrow, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// Distinguishes null from a missing member.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl<'a> Request<'a> {
    /// Parses one JSON value.
    pub(super) fn read(value: &'a RawValue) -> Request<'a> {
        let Ok(members) = serde_json::from_str::<Members<'_>>(value.get()) else {
            return Request::Invalid(NO_ID);
        };
        let id = members.id.map(RawValue::get);
        // A string, a number of any kind, or null; other values are not ids.
        if id.is_some_and(|id| id.starts_with(['{', '[', 't', 'f'])) {
            return Request::Invalid(NO_ID);
        }
        let is_current = members.jsonrpc.is_some_and(|version| version.get() == "\"2.0\"");
        let method = members.method.and_then(|method| serde_json::from_str::<Text<'_>>(method.get()).ok());
        match (method, id) {
            (Some(Text(method)), Some(id)) if is_current => {
                Request::Call(id, Call { method, params: members.params })
            }
            (Some(Text(method)), None) if is_current => {
                Request::Notification(Call { method, params: members.params })
            }
            (_, id) => Request::Invalid(id.unwrap_or(NO_ID)),
        }
    }

    /// The call, if this is a valid request.
    pub(super) fn call(&self) -> Option<&Call<'a>> {
        match self {
            Request::Call(_, call) | Request::Notification(call) => Some(call),
            Request::Invalid(_) => None,
        }
    }

    /// The lane of the request; an invalid one is cheap to refuse.
    pub(super) fn lane(&self, table: &Table) -> Lane {
        self.call().map_or(Lane::Reads, |call| table.lane(&call.method, call.params))
    }

    /// The id to answer under; `None` for a notification.
    pub(super) fn id(&self) -> Option<&'a str> {
        match self {
            Request::Call(id, _) | Request::Invalid(id) => Some(id),
            Request::Notification(_) => None,
        }
    }
}

/// A string that is copied only if it contains escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The answer for a failed method.
pub(super) fn failure(id: &str, failure: &ErrorObjectOwned) -> String {
    let data = failure.data().map(|data| format!(r#","data":{}"#, data.get())).unwrap_or_default();
    let (code, message) = (failure.code(), serde_json::Value::from(failure.message()));
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}{data}}}}}"#)
}

/// An error answer.
pub(super) fn error(id: &str, code: i32, message: &str) -> String {
    let message = serde_json::Value::from(message);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}}}}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> String {
        let value: &RawValue = serde_json::from_str(text).unwrap();
        match Request::read(value) {
            Request::Call(id, call) => {
                format!("{id} calls {} {}", call.method, call.params.map_or("", RawValue::get))
            }
            Request::Notification(call) => format!("notification {}", call.method),
            Request::Invalid(id) => format!("{id} is invalid"),
        }
    }

    #[test]
    fn ids_as_the_specification_has_them() {
        for id in ["1", "-1", "1.5", "0", "1e3", "\"a\"", "\"\"", "null", "18446744073709551616"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":[1, 2]}}"#);
            assert_eq!(kind(&text), format!("{id} calls m [1, 2]"));
        }
        for id in ["{}", "[1]", "true", "false"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            assert_eq!(kind(&text), "null is invalid");
        }
        assert_eq!(kind(r#"{"jsonrpc":"2.0","method":"m\u0031","params":{}}"#), "notification m1");
    }

    #[test]
    fn what_is_no_request() {
        for (text, expected) in [
            ("1", "null is invalid"),
            ("[]", "null is invalid"),
            ("\"x\"", "null is invalid"),
            ("{}", "null is invalid"),
            (r#"{"id":7}"#, "7 is invalid"),
            (r#"{"jsonrpc":"2.0","id":7}"#, "7 is invalid"),
            (r#"{"id":7,"method":"m"}"#, "7 is invalid"),
            (r#"{"jsonrpc":"1.0","id":7,"method":"m"}"#, "7 is invalid"),
            (r#"{"jsonrpc":2.0,"id":7,"method":"m"}"#, "7 is invalid"),
            (r#"{"jsonrpc":"2.0","id":7,"method":1}"#, "7 is invalid"),
            (r#"{"jsonrpc":"2.0","method":1,"params":"bar"}"#, "null is invalid"),
            (r#"{"jsonrpc":"2.0","id":7,"id":8,"method":"m"}"#, "null is invalid"),
        ] {
            assert_eq!(kind(text), expected, "{text}");
        }
    }

    #[test]
    fn errors_keep_what_they_say() {
        let owned = ErrorObjectOwned::owned(3, "a \"b\"", Some("0x"));
        let expected = r#"{"jsonrpc":"2.0","id":"a","error":{"code":3,"message":"a \"b\"","data":"0x"}}"#;
        assert_eq!(failure("\"a\"", &owned), expected);
        assert_eq!(
            error("7", -1, "a \"b\""),
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"a \"b\""}}"#
        );
    }
}
