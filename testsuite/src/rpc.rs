//! A small HTTP client of a node: JSON-RPC with batches, and plain JSON pages such as `/v1/status`.

use std::{fmt, net::IpAddr, time::Duration};

use anyhow::{Context, Result, anyhow, bail, ensure};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request,
    body::Bytes,
    header::{CONTENT_TYPE, HeaderValue},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The timeout of a request. A node that is busy on two cores still answers within a second.
const DEADLINE: Duration = Duration::from_secs(10);
/// The longest accepted answer: a block of 65,536 hashes is below 5 MiB.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// The most calls of one batch: far fewer than nodes accept, so that any method's answers fit into one response.
pub const BATCH_CALLS_MAX: usize = 100;

/// A node's API. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Rpc {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
}

/// An error returned by the node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RpcError {
    /// The error code of JSON-RPC or Ethereum.
    pub code: i64,
    /// The node's error message.
    pub message: String,
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.message, self.code)
    }
}

impl std::error::Error for RpcError {}

#[derive(Deserialize)]
struct Response {
    id: Option<usize>,
    #[serde(default)]
    result: Value,
    error: Option<RpcError>,
}

impl Response {
    fn into_result(self) -> Result<Value, RpcError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.result),
        }
    }
}

impl Rpc {
    /// Makes a client for an API such as `http://127.0.0.1:8545`.
    pub fn new(url: &str) -> Result<Rpc> {
        Rpc::over(HttpConnector::new(), url)
    }

    /// As [`Rpc::new`], connecting from this local address. Nodes distinguish their operator from strangers by address.
    pub fn from_address(local: IpAddr, url: &str) -> Result<Rpc> {
        let mut connector = HttpConnector::new();
        connector.set_local_address(Some(local));
        Rpc::over(connector, url)
    }

    fn over(connector: HttpConnector, url: &str) -> Result<Rpc> {
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        ensure!(url.starts_with("http://"), "{url}: only http:// is supported here");
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Rpc { client, url: url.trim_end_matches('/').to_owned() })
    }

    /// The address of the node's API.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Reads a JSON page of the node.
    pub async fn page(&self, path: &str) -> Result<Value> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// Returns the value of a counter or gauge without labels at the node's `/metrics`.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let page = self.exchange(Method::GET, "/metrics", Bytes::new()).await?;
        let page = std::str::from_utf8(&page).context("the metrics are not valid UTF-8")?;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.with_context(|| format!("{} has no metric {name}", self.url))?;
        value.trim().parse().with_context(|| format!("the metric {name} is {value}"))
    }

    /// Returns the number of the node's last batch: the cheapest call.
    pub async fn head(&self) -> Result<u64> {
        quantity(&self.call("eth_blockNumber", json!([])).await?)
    }

    /// Makes one JSON-RPC call. An [`RpcError`] can be found in the error with `downcast_ref`.
    pub async fn call<T: DeserializeOwned>(&self, method: &str, params: Value) -> Result<T> {
        let request = json!({ "jsonrpc": "2.0", "id": 0, "method": method, "params": params });
        let answer = self.send(Method::POST, "/", request.to_string().into()).await?;
        let answer: Response = serde_json::from_value(answer).with_context(|| self.not_json_rpc())?;
        let result = answer.into_result().map_err(anyhow::Error::new);
        let result = result.with_context(|| format!("{method} at {}", self.url))?;
        serde_json::from_value(result)
            .with_context(|| format!("{} answered {method} in an unexpected form", self.url))
    }

    /// Makes several calls of one method in one request; the answers are in the order of the calls.
    pub async fn batch(&self, method: &str, params: &[Value]) -> Result<Vec<Result<Value, RpcError>>> {
        if params.is_empty() {
            return Ok(Vec::new());
        }
        let call = |(id, params)| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let request = Value::Array(params.iter().enumerate().map(call).collect());
        let answer = self.send(Method::POST, "/", request.to_string().into()).await?;
        if let Some(error) = answer.get("error") {
            bail!("{} refused a batch of {} {method}: {error}", self.url, params.len());
        }
        let answers: Vec<Response> = serde_json::from_value(answer).with_context(|| self.not_json_rpc())?;
        let mut results: Vec<Option<Result<Value, RpcError>>> = vec![None; params.len()];
        for answer in answers {
            let place = answer.id.and_then(|id| results.get_mut(id));
            *place.ok_or_else(|| anyhow!("{} answered with an unknown id", self.url))? =
                Some(answer.into_result());
        }
        let results: Option<Vec<_>> = results.into_iter().collect();
        results.ok_or_else(|| anyhow!("{} left calls of a batch of {method} unanswered", self.url))
    }

    /// Makes calls of one method in as many batches as needed. Any error fails the whole.
    pub async fn batch_all<T: DeserializeOwned>(&self, method: &str, params: &[Value]) -> Result<Vec<T>> {
        let mut results = Vec::with_capacity(params.len());
        for part in params.chunks(BATCH_CALLS_MAX) {
            for result in self.batch(method, part).await? {
                let result = result
                    .map_err(anyhow::Error::new)
                    .with_context(|| format!("{method} at {}", self.url))?;
                results
                    .push(serde_json::from_value(result).with_context(|| format!("the answer to {method}"))?);
            }
        }
        Ok(results)
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Value> {
        let answer = self.exchange(method, path, body).await?;
        serde_json::from_slice(&answer).with_context(|| format!("request to {}{path} failed", self.url))
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        let mut request = Request::new(Full::new(body));
        *request.uri_mut() =
            format!("{}{path}", self.url).parse().with_context(|| format!("{} is not a URL", self.url))?;
        *request.method_mut() = method;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let exchange = async {
            let response = self.client.request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
            let body = body.map_err(|error| anyhow!(error))?.to_bytes();
            if !status.is_success() {
                let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
                bail!("HTTP status {status}: {text}");
            }
            Ok(body)
        };
        let result = tokio::time::timeout(DEADLINE, exchange).await;
        let result = result.unwrap_or_else(|_| Err(anyhow!("no answer within {} s", DEADLINE.as_secs())));
        result.with_context(|| format!("request to {}{path} failed", self.url))
    }

    fn not_json_rpc(&self) -> String {
        format!("{} does not speak JSON-RPC", self.url)
    }
}

/// Parses Ethereum's hexadecimal quantity.
pub fn quantity(value: &Value) -> Result<u64> {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.ok_or_else(|| anyhow!("expected a hexadecimal quantity, found {value}"))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// A server that answers one connection once.
    async fn server(status: &'static str, answer: &'static str) -> Rpc {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4_096];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", answer.len());
            stream.write_all((head + answer).as_bytes()).await.unwrap();
        });
        Rpc::new(&url).unwrap()
    }

    #[tokio::test]
    async fn answers_of_a_batch_are_put_in_order() {
        let answer =
            r#"[{"id":1,"error":{"code":-32000,"message":"already known"}},{"id":0,"result":"0x5"}]"#;
        let rpc = server("200 OK", answer).await;
        let results = rpc.batch("m", &[json!([]), json!([])]).await.unwrap();
        assert_eq!(quantity(results[0].as_ref().unwrap()).unwrap(), 5);
        assert_eq!(results[1].as_ref().unwrap_err().to_string(), "already known (code -32000)");
    }

    #[tokio::test]
    async fn wrong_answers_are_errors() {
        let two = [json!([]), json!([])];
        let answers = [
            r#"[{"id":0,"result":1}]"#,
            r#"[{"id":9,"result":1}]"#,
            r#"{"error":{"code":1,"message":"no"}}"#,
        ];
        for answer in answers {
            assert!(server("200 OK", answer).await.batch("m", &two).await.is_err(), "{answer}");
        }
        let error = server("503 Service Unavailable", "starting").await.page("/v1/status").await.unwrap_err();
        assert!(
            format!("{error:#}").contains("503") && format!("{error:#}").contains("starting"),
            "{error:#}"
        );
        let rpc = server("200 OK", r#"{"id":0,"error":{"code":3,"message":"execution reverted"}}"#).await;
        let error = rpc.call::<Value>("eth_call", json!([])).await.unwrap_err();
        assert_eq!(error.downcast_ref::<RpcError>().unwrap().code, 3);
    }
}
