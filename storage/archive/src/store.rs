//! [`Archive`]: the objects of an archive, each bounded before it is read.

use std::{
    cmp::Reverse,
    fmt, fs,
    sync::{Arc, Once},
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::{
    ClientConfigKey, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    http::HttpBuilder,
    local::LocalFileSystem,
    path::Path as ObjectPath,
};
use tokio::{
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use crate::{
    bounded::BoundedConnector,
    entry::{ArchiveEntry, modified_ms},
    error::ArchiveError,
    index::{self, INDEX_BYTES_MAX},
    location::{Location, Scheme},
    manifest::{MANIFEST_BYTES_MAX, Manifest},
    names::{self, CLOCK, INDEX, RETIRED, SNAPSHOTS, SnapshotName},
};

/// Requests in flight at once: hides the round trips, and bounds memory to this number of pieces.
pub(crate) const PARALLEL: usize = 16;
/// Maximum number of manifests in a listing: nobody prunes an archive with more, and a prune reads each.
const MANIFESTS_MAX: usize = 4_096;
/// Maximum number of objects in a listing.
pub(crate) const OBJECTS_MAX: usize = 1 << 23;
/// Longest time for a listing: 8 million names are 8,000 pages.
const LIST_TIME_MAX: Duration = Duration::from_secs(3_600);
/// Bytes that are allocated before any arrive, whatever length the server announces.
const FIRST_BYTES: usize = 2 << 20;
/// Maximum number of retries of a request.
const RETRIES_MAX: usize = 8;

/// How an archive is accessed.
#[derive(Clone)]
pub struct Settings {
    /// How long the archive may take to answer.
    pub patience: Patience,
    /// The environment variables that begin with `AWS_`: credentials, region and endpoint of S3, as Amazon's own
    /// tools name them. Without credentials, the machine's role provides them.
    pub variables: Vec<(String, String)>,
}

/// How long an archive may take to answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// How long to wait for a server to accept a connection.
    pub connect: Duration,
    /// How long to wait for a server that sends nothing.
    pub read: Duration,
    /// How long one object may take, even if it trickles steadily. A piece has up to 1 MiB, a manifest some 70 bytes
    /// per piece.
    pub request: Duration,
    /// How long a request is retried.
    pub retry: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        let seconds = Duration::from_secs;
        Patience { connect: seconds(10), read: seconds(30), request: seconds(300), retry: seconds(120) }
    }
}

impl Settings {
    /// Reads the settings from the environment of this process.
    pub fn from_env() -> Settings {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            name.starts_with("AWS_").then_some((name, value))
        });
        Settings { patience: Patience::default(), variables: variables.collect() }
    }
}

/// Snapshots in object storage. Clones share the connections.
#[derive(Clone)]
pub struct Archive {
    store: Arc<dyn ObjectStore>,
    prefix: ObjectPath,
    location: Location,
}

/// Leaves out the store, which knows the credentials.
impl fmt::Debug for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the archive {}", self.location)
    }
}

impl Archive {
    /// Opens the archive at a location. Sends no request yet.
    ///
    /// # Errors
    /// [`ArchiveError::Open`].
    pub fn open(location: &Location, settings: &Settings) -> Result<Archive, ArchiveError> {
        let opened = match location.scheme() {
            Scheme::S3 => open_s3(location, settings),
            Scheme::Http => open_http(location, settings),
            Scheme::File => open_dir(location),
        };
        let failed = |source| ArchiveError::Open { location: location.clone(), source };
        let (store, prefix) = opened.map_err(failed)?;
        Ok(Archive { store, prefix, location: location.clone() })
    }

    /// As [`Archive::open`], for writing the first snapshot there: creates the directory if it does not exist.
    ///
    /// # Errors
    /// [`ArchiveError::Open`].
    pub fn create(location: &Location, settings: &Settings) -> Result<Archive, ArchiveError> {
        if let (Scheme::File, Some(dir)) = (location.scheme(), location.dir()) {
            fs::create_dir_all(&dir).map_err(|error| {
                let source = object_store::Error::Generic { store: "file", source: Box::new(error) };
                ArchiveError::Open { location: location.clone(), source }
            })?;
        }
        Self::open(location, settings)
    }

    /// The archive's location.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the snapshots that the archive claims to have, newest first. It lists a bucket, and reads the index of
    /// an archive that is read by HTTP.
    ///
    /// # Errors
    /// [`ArchiveError::Store`], [`ArchiveError::Damaged`], [`ArchiveError::TooMany`].
    pub async fn snapshots(&self) -> Result<Vec<ArchiveEntry>, ArchiveError> {
        if self.location.scheme() == Scheme::Http {
            let bytes = self.read(INDEX, INDEX_BYTES_MAX).await?;
            return index::decode(&bytes).map_err(|reason| self.damaged(INDEX, reason));
        }
        self.manifests(SNAPSHOTS).await
    }

    /// Returns the manifests in a folder, newest batch first.
    pub(crate) async fn manifests(&self, folder: &'static str) -> Result<Vec<ArchiveEntry>, ArchiveError> {
        let mut entries = Vec::new();
        self.list(folder, MANIFESTS_MAX, |object| entries.extend(ArchiveEntry::of(&object))).await?;
        entries.sort_by_key(|entry| Reverse(entry.name));
        Ok(entries)
    }

    /// Returns the manifests that prunes retired, each with its folder.
    pub(crate) async fn retired(&self) -> Result<Vec<(ArchiveEntry, String)>, ArchiveError> {
        let mut retired = Vec::new();
        self.list(RETIRED, MANIFESTS_MAX, |object| {
            let run = names::run_of_retired(object.location.as_ref());
            retired.extend(ArchiveEntry::of(&object).zip(run.map(names::retired)));
        })
        .await?;
        Ok(retired)
    }

    /// Reads a manifest, and checks it against its name alone.
    pub(crate) async fn manifest(&self, name: &SnapshotName, folder: &str) -> Result<Manifest, ArchiveError> {
        let object = name.within(folder);
        let bytes = self.read(&object, MANIFEST_BYTES_MAX).await?;
        // Decoding 256 MiB takes seconds, in which a running node has other things to do.
        let decoded = spawn_blocking(move || Manifest::decode(&bytes)).await?;
        let manifest = decoded.map_err(|reason| self.damaged(&object, reason))?;
        match manifest.name() == *name {
            true => Ok(manifest),
            false => Err(self.damaged(&object, "its content belongs to another batch than its name says")),
        }
    }

    /// Reads an object of at most `bytes_max` bytes.
    pub(crate) async fn read(&self, name: &str, bytes_max: usize) -> Result<Vec<u8>, ArchiveError> {
        let failed = |source| self.failed("read", name, source);
        let result = self.store.get(&self.path(name)).await.map_err(failed)?;
        let too_long = |len: u64| {
            self.damaged(name, format!("it has at least {len} bytes, but the limit is {bytes_max}"))
        };
        if result.meta.size > bytes_max as u64 {
            return Err(too_long(result.meta.size));
        }
        let mut bytes = Vec::with_capacity((result.meta.size as usize).min(FIRST_BYTES));
        let mut stream = result.into_stream();
        while let Some(part) = stream.try_next().await.map_err(failed)? {
            // Checks the real length, whatever the answer announced.
            if bytes.len() + part.len() > bytes_max {
                return Err(too_long((bytes.len() + part.len()) as u64));
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }

    pub(crate) async fn write(&self, name: &str, bytes: Vec<u8>) -> Result<(), ArchiveError> {
        self.check_writable()?;
        let written = self.store.put(&self.path(name), bytes.into()).await;
        written.map(|_| ()).map_err(|source| self.failed("write", name, source))
    }

    /// Writes an object unless one of that name exists; returns whether it wrote the object.
    pub(crate) async fn write_new(&self, name: &str, bytes: Vec<u8>) -> Result<bool, ArchiveError> {
        self.check_writable()?;
        let options = PutOptions::from(PutMode::Create);
        match self.store.put_opts(&self.path(name), bytes.into(), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(source) => Err(self.failed("write", name, source)),
        }
    }

    /// Deletes objects. Those that are already gone are no error.
    pub(crate) async fn delete(&self, names: Vec<String>) -> Result<(), ArchiveError> {
        self.check_writable()?;
        let paths: Vec<_> = names.iter().map(|name| Ok(self.path(name))).collect();
        let mut deleted = self.store.delete_stream(futures::stream::iter(paths).boxed());
        while let Some(result) = deleted.next().await {
            match result {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(source) => return Err(self.failed("delete", "objects", source)),
            }
        }
        Ok(())
    }

    /// Visits the objects in a folder one by one, because there may be very many.
    pub(crate) async fn list(
        &self,
        folder: &'static str,
        max: usize,
        mut visit: impl FnMut(ObjectMeta),
    ) -> Result<(), ArchiveError> {
        let path = self.path(folder);
        let mut listed = self.store.list(Some(&path));
        let (mut count, ends) = (0, Instant::now() + LIST_TIME_MAX);
        // Pages without objects can continue for ever, too.
        while let Some(object) = timeout_at(ends, listed.try_next())
            .await
            .map_err(|_| self.damaged(folder, "its listing exceeds the time limit"))?
            .map_err(|source| self.failed("list", folder, source))?
        {
            if count == max {
                return Err(ArchiveError::TooMany { location: self.location.clone(), name: folder, max });
            }
            count += 1;
            visit(object);
        }
        Ok(())
    }

    /// Returns the time by the archive's clock, in milliseconds since 1970. Times of objects are compared with this
    /// clock alone.
    pub(crate) async fn now_ms(&self) -> Result<u64, ArchiveError> {
        self.write(CLOCK, Vec::new()).await?;
        let meta = self.store.head(&self.path(CLOCK)).await;
        let meta = meta.map_err(|source| self.failed("look at", CLOCK, source))?;
        Ok(modified_ms(&meta))
    }

    /// Rewrites the index.
    pub(crate) async fn write_index(&self) -> Result<(), ArchiveError> {
        let entries = self.manifests(SNAPSHOTS).await?;
        self.write(INDEX, index::encode(&entries)?).await
    }

    /// Moves a manifest out of the snapshots, so that it protects what it names for a while. Its name is new each
    /// time: a snapshot can be exported again and retired again, and then names other objects than the first time.
    pub(crate) async fn retire(&self, name: &SnapshotName) -> Result<(), ArchiveError> {
        let bytes = self.read(&name.within(SNAPSHOTS), MANIFEST_BYTES_MAX).await?;
        self.write(&name.within(&names::retired(names::draw_run()?)), bytes).await?;
        self.delete(vec![name.within(SNAPSHOTS)]).await
    }

    /// # Errors
    /// [`ArchiveError::ReadOnly`].
    pub(crate) fn check_writable(&self) -> Result<(), ArchiveError> {
        match self.location.scheme() {
            Scheme::Http => Err(ArchiveError::ReadOnly { location: self.location.clone() }),
            Scheme::S3 | Scheme::File => Ok(()),
        }
    }

    pub(crate) fn damaged(&self, name: &str, reason: impl ToString) -> ArchiveError {
        ArchiveError::Damaged {
            name: name.to_owned(),
            location: self.location.clone(),
            reason: reason.to_string(),
        }
    }

    fn failed(&self, action: &'static str, name: &str, source: object_store::Error) -> ArchiveError {
        let (name, location, source) = (name.to_owned(), self.location.clone(), Box::new(source));
        ArchiveError::Store { action, name, location, source }
    }

    fn path(&self, name: &str) -> ObjectPath {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }
}

/// A store, and the prefix of its objects' names.
type OpenedStore = Result<(Arc<dyn ObjectStore>, ObjectPath), object_store::Error>;

fn open_s3(location: &Location, settings: &Settings) -> OpenedStore {
    use_ring();
    let mut builder = AmazonS3Builder::new();
    for (name, value) in &settings.variables {
        if let Ok(key) = name.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    // Set one by one: the client's other options stay as the environment has them (AWS_ALLOW_HTTP, AWS_PROXY_URL).
    for (key, time) in timeouts(&settings.patience) {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), time);
    }
    let builder = builder.with_http_connector(BoundedConnector).with_retry(retry(&settings.patience));
    let builder = builder.with_bucket_name(location.bucket());
    Ok((Arc::new(builder.build()?), ObjectPath::from_url_path(location.url().path())?))
}

fn open_http(location: &Location, settings: &Settings) -> OpenedStore {
    use_ring();
    // Relative names are joined to this URL.
    let url = format!("{}/", location.url().as_str().trim_end_matches('/'));
    let is_plain = location.url().scheme() == "http";
    let mut builder = HttpBuilder::new().with_url(url).with_http_connector(BoundedConnector);
    builder = builder.with_retry(retry(&settings.patience));
    for (key, time) in timeouts(&settings.patience) {
        builder = builder.with_config(key, time);
    }
    let builder = builder.with_config(ClientConfigKey::AllowHttp, is_plain.to_string());
    Ok((Arc::new(builder.build()?), ObjectPath::default()))
}

fn open_dir(location: &Location) -> OpenedStore {
    let store = LocalFileSystem::new_with_prefix(location.dir().unwrap_or_default())?;
    Ok((Arc::new(store.with_fsync(true)), ObjectPath::default()))
}

fn timeouts(patience: &Patience) -> [(ClientConfigKey, String); 3] {
    let text = |time: Duration| format!("{}ms", time.as_millis());
    [
        (ClientConfigKey::ConnectTimeout, text(patience.connect)),
        (ClientConfigKey::ReadTimeout, text(patience.read)),
        (ClientConfigKey::Timeout, text(patience.request)),
    ]
}

fn retry(patience: &Patience) -> RetryConfig {
    RetryConfig { max_retries: RETRIES_MAX, retry_timeout: patience.retry, ..RetryConfig::default() }
}

/// TLS is rustls with ring, here as everywhere in a node.
fn use_ring() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error means that the process has a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
