//! An S3 server that keeps its objects as files, and can be killed, slow, or silent.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use s3s::{Body, auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::{net::TcpListener, task::JoinHandle};

pub(crate) const BUCKET: &str = "bucket";
pub(crate) const KEY: &str = "test-key";
pub(crate) const SECRET: &str = "test-secret-that-nobody-prints";

/// The faults of the server.
#[derive(Default)]
pub(crate) struct Faults {
    /// Milliseconds before each answer.
    pub(crate) delay_ms: AtomicUsize,
    /// Whether it answers nothing at all.
    pub(crate) is_silent: AtomicBool,
    /// Whether it withholds pieces, though it lists the snapshots that have them.
    pub(crate) keeps_pieces: AtomicBool,
    /// Pieces that are accepted before the server dies; negative if it does not.
    pub(crate) pieces_left: AtomicI64,
    /// Objects that are served before the server dies; negative if it does not.
    pub(crate) objects_left: AtomicI64,
    /// Whether it is dead.
    pub(crate) is_dead: AtomicBool,
    /// Pieces and packs that were written.
    pub(crate) written: AtomicUsize,
    /// Objects that were read.
    pub(crate) read: AtomicUsize,
}

/// A server on a free port, with one bucket.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) faults: Arc<Faults>,
    root: tempfile::TempDir,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start() -> Server {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(BUCKET)).unwrap();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(root.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = builder.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let faults = Arc::new(Faults {
            pieces_left: AtomicI64::new(-1),
            objects_left: AtomicI64::new(-1),
            ..Faults::default()
        });
        let own = Arc::clone(&faults);
        let task = tokio::spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { return };
                let (service, faults) = (service.clone(), Arc::clone(&own));
                let answer = service_fn(move |request: Request<Incoming>| {
                    let (service, faults) = (service.clone(), Arc::clone(&faults));
                    async move {
                        faults.meet(request.method().as_str(), request.uri().path()).await?;
                        let answered = service.call(request.map(Body::from)).await;
                        answered.map_err(|error| io::Error::other(format!("{error:?}")))
                    }
                });
                tokio::spawn(async move {
                    // A client that disconnects is no failure of the test.
                    let _ = Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(socket), answer)
                        .await;
                });
            }
        });
        Server { address, faults, root, task }
    }

    /// The environment of a client of this server.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        variables(self.address)
    }

    pub(crate) fn bucket(&self) -> PathBuf {
        self.root.path().join(BUCKET)
    }

    /// The files of objects whose names contain a text, sorted.
    pub(crate) fn objects(&self, part: &str) -> Vec<PathBuf> {
        files(&self.bucket()).into_iter().filter(|file| file.to_str().unwrap().contains(part)).collect()
    }

    /// Makes all existing objects older.
    pub(crate) fn age(&self, by: Duration) {
        for file in files(&self.bucket()) {
            let modified = fs::metadata(&file).unwrap().modified().unwrap();
            File::options().write(true).open(&file).unwrap().set_modified(modified - by).unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Faults {
    /// Decides on a request. An error closes its connection, as a dying process does.
    async fn meet(&self, method: &str, path: &str) -> io::Result<()> {
        let is_write = method == "PUT" && (path.contains("/pieces/") || path.contains("/codes/"));
        // In one step, and it stays at 0: no concurrent request finds a server without a limit.
        let is_last = |left: &AtomicI64| {
            let took =
                left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| (left > 0).then(|| left - 1));
            took == Err(0)
        };
        if (is_write && is_last(&self.pieces_left)) || (method == "GET" && is_last(&self.objects_left)) {
            self.is_dead.store(true, Ordering::SeqCst);
        }
        if self.is_dead.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let is_kept =
            method == "GET" && path.contains("/pieces/") && self.keeps_pieces.load(Ordering::SeqCst);
        if is_kept || self.is_silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let delay = Duration::from_millis(self.delay_ms.load(Ordering::SeqCst) as u64);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        match method {
            "PUT" if is_write => self.written.fetch_add(1, Ordering::SeqCst),
            "GET" => self.read.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
        Ok(())
    }

    /// Resets it, as a restart does.
    pub(crate) fn revive(&self) {
        self.pieces_left.store(-1, Ordering::SeqCst);
        self.objects_left.store(-1, Ordering::SeqCst);
        self.is_dead.store(false, Ordering::SeqCst);
    }
}

/// The environment of a client of the server at `address`.
pub(crate) fn variables(address: SocketAddr) -> Vec<(String, String)> {
    let endpoint = format!("http://{address}");
    let variables = [
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", &endpoint),
        ("AWS_ALLOW_HTTP", "true"),
    ];
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

/// All files below a directory, sorted.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}
