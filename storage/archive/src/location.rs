//! [`Location`]: the URL of an archive.

use std::{borrow::Cow, fmt, net::IpAddr, path::PathBuf, str::FromStr, sync::Arc};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::{Host, Url};

/// Where an archive is: `s3://BUCKET/PREFIX`, `https://HOST/PATH` (to read from only) or `file:///DIR`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    // Shared, because it is part of every error.
    url: Arc<Url>,
    scheme: Scheme,
}

/// The kind of object store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scheme {
    S3,
    /// An HTTP server, which can neither list nor write.
    Http,
    File,
}

/// Why a text is not the URL of an archive. The text is not repeated, because it may hold a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LocationError {
    /// The text is not a URL of a known kind.
    #[error("an archive URL has the form s3://BUCKET/PREFIX, https://HOST/PATH or file:///DIR")]
    NotAnArchive,
    /// The URL has a user, a password, a fragment, or a query, which may be a signature.
    #[error(
        "an archive URL cannot contain a user, password, query or fragment: credentials come from the environment \
        (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or the machine's role"
    )]
    Credentials,
    /// The URL is plain HTTP to another machine: everybody on the way could change the content, and slow it down.
    #[error("an archive needs https; http works only for a server on this machine")]
    PlainHttp,
}

impl Location {
    /// Whether a text is meant as the URL of an archive, not as a path.
    pub fn is_meant(text: &str) -> bool {
        text.contains("://")
    }

    pub(crate) fn scheme(&self) -> Scheme {
        self.scheme
    }

    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// Name of the bucket.
    pub(crate) fn bucket(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// The directory of a `file` URL.
    pub(crate) fn dir(&self) -> Option<PathBuf> {
        self.url.to_file_path().ok()
    }
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Location, LocationError> {
        let url = Url::parse(text).map_err(|_| LocationError::NotAnArchive)?;
        let has_user = !url.username().is_empty() || url.password().is_some();
        if has_user || url.query().is_some() || url.fragment().is_some() {
            return Err(LocationError::Credentials);
        }
        let has_host = url.host_str().is_some_and(|host| !host.is_empty());
        let scheme = match url.scheme() {
            "s3" if has_host && url.port().is_none() => Scheme::S3,
            "https" if has_host => Scheme::Http,
            "http" if is_loopback(&url) => Scheme::Http,
            "http" => return Err(LocationError::PlainHttp),
            "file" if !has_host && url.to_file_path().is_ok() => Scheme::File,
            _ => return Err(LocationError::NotAnArchive),
        };
        Ok(Location { url: Arc::new(url), scheme })
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => IpAddr::V4(ip).is_loopback(),
        Some(Host::Ipv6(ip)) => IpAddr::V6(ip).is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

impl Serialize for Location {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Location {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Location {
    fn schema_name() -> Cow<'static, str> {
        "Location".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^(s3|https?|file)://[^?#]+$" })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: anything that could be a secret is refused, and not repeated.
    #[test]
    fn locations_have_no_credentials() {
        for good in [
            "s3://bucket",
            "s3://bucket/a/b",
            "https://host.example/x",
            "http://127.0.0.1:9/x",
            "file:///a/b",
        ] {
            let location: Location = good.parse().unwrap();
            assert_eq!(location.to_string(), good);
        }
        let secret = [
            "s3://key:secret@bucket/a",
            "s3://secret@bucket",
            "https://host.example/x?X-Amz-Signature=secret",
            "https://host.example/x#secret",
        ];
        for text in secret {
            let refused = text.parse::<Location>().unwrap_err();
            assert_eq!(refused, LocationError::Credentials);
            assert!(!refused.to_string().contains("secret@") && !refused.to_string().contains("=secret"));
        }
        assert_eq!("http://host.example/x".parse::<Location>(), Err(LocationError::PlainHttp));
        for text in [
            "",
            "/dir",
            "gs://bucket/a",
            "s3://",
            "s3:///a",
            "file://host/a",
            "ftp://h/a",
            "s3://bucket:80/a",
        ] {
            assert_eq!(text.parse::<Location>(), Err(LocationError::NotAnArchive), "{text}");
        }
        assert!(Location::is_meant("s3://bucket") && !Location::is_meant("dir/export"));
    }
}
