//! Object stores: `s3://BUCKET`, and the others supported by the crate `object_store`.
//!
//! ```text
//! s3://bucket/fleet ──one LIST──> keys and sizes ──Folder──> runs, days
//!         environment ──> client ──────GET──────────────────> run.json
//!                            └──────── DataFusion ──GET──────> segments
//! ```
//!
//! Endpoints and credentials come from environment variables only, with the names of `object_store` (`AWS_ACCESS_KEY_ID`, ...). Error
//! responses of a store can quote them, so their text is never shown: `Guarded` has its own messages. It does not write either.
//!
//! Left out on purpose: writing, and caching between queries.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use bytes::Bytes;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::object_store::path::Path as Key;
use datafusion::object_store::{
    self, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutMultipartOptions, PutOptions,
    PutPayload, PutResult,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tokio::runtime::Runtime;
use url::Url;

use crate::unread::Unread;

/// Concurrent requests to one store, for many small files.
pub(crate) const REQUESTS: usize = 32;

/// A bucket, a container or a server, and its listed objects.
pub struct ObjectStoreSource {
    url: ObjectStoreUrl,
    client: Arc<dyn ObjectStore>,
    /// Listed objects and their sizes.
    keys: RwLock<BTreeMap<String, u64>>,
    /// Why it stopped responding. Then it gets no more requests, each of which would time out.
    lost: OnceLock<String>,
}

impl ObjectStoreSource {
    /// A client for `s3://bucket`.
    ///
    /// # Errors
    /// The problem and what to do, to follow the URL.
    pub(crate) fn open(url: &str) -> Result<ObjectStoreSource, String> {
        let url = ObjectStoreUrl::parse(url).map_err(|_| "is no URL of a store".to_owned())?;
        let inner = client(url.as_ref())?;
        let client = Arc::new(ReadOnlyClient { url: AsRef::<Url>::as_ref(&url).clone(), inner });
        Ok(ObjectStoreSource { url, client, keys: RwLock::default(), lost: OnceLock::new() })
    }

    /// Its URL, `s3://bucket/`.
    pub fn url(&self) -> &ObjectStoreUrl {
        &self.url
    }

    /// The client for DataFusion.
    pub fn client(&self) -> &Arc<dyn ObjectStore> {
        &self.client
    }

    /// Why it stopped responding.
    pub fn lost(&self) -> Option<String> {
        Some(format!("{}: {}", self.url, Unread::Lost(self.lost.get()?.clone())))
    }

    /// Advice on settings that give access.
    pub(crate) fn settings(&self) -> &'static str {
        match scheme(self.url.as_ref()) {
            Ok(ObjectStoreScheme::AmazonS3) => {
                "AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
            }
            Ok(ObjectStoreScheme::GoogleCloudStorage) => {
                "GOOGLE_APPLICATION_CREDENTIALS in the environment"
            }
            Ok(ObjectStoreScheme::MicrosoftAzure) => {
                "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY in the environment"
            }
            _ => "the name of the server",
        }
    }

    /// Lists all keys below a folder.
    pub(crate) fn list(&self, folder: &str) -> Result<(), Unread> {
        let prefix = if folder.is_empty() { None } else { Some(parse(folder)?) };
        let found: Vec<ObjectMeta> =
            self.wait(self.client.list(prefix.as_ref()).try_collect::<Vec<_>>())?;
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        keys.extend(found.into_iter().map(|object| (object.location.to_string(), object.size)));
        Ok(())
    }

    /// The size of an object that was listed.
    pub(crate) fn size(&self, key: &str) -> Option<u64> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }

    /// Whether there are objects below this key.
    pub(crate) fn is_folder(&self, key: &str) -> bool {
        let start = below(key);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.range(start.clone()..).next().is_some_and(|(key, _)| key.starts_with(&start))
    }

    /// The names of the folders in a folder, in order.
    pub(crate) fn folders(&self, key: &str) -> Vec<String> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let (start, mut names) = (below(key), Vec::new());
        let mut from = start.clone();
        while let Some((key, _)) = keys.range(from..).next() {
            let Some(rest) = key.strip_prefix(&start) else { break };
            from = match rest.split_once('/') {
                Some((name, _)) => {
                    names.push(name.to_owned());
                    // The first text after all that begin with "name/".
                    format!("{start}{name}0")
                }
                None => format!("{key}\0"),
            };
        }
        names
    }

    /// A part of an object.
    pub(crate) fn read(&self, key: &str, range: Range<u64>) -> Result<Bytes, Unread> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        self.wait(self.client.get_range(&parse(key)?, range))
    }

    /// Waits for a response on a separate thread, because the caller's thread may not block on futures.
    fn wait<T: Send>(
        &self,
        answer: impl Future<Output = object_store::Result<T>> + Send,
    ) -> Result<T, Unread> {
        if let Some(why) = self.lost.get() {
            return Err(Unread::Lost(why.clone()));
        }
        let runtime = runtime().map_err(Unread::Other)?;
        let answer = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| runtime.block_on(answer));
            waiting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        answer.map_err(|error| {
            let why = refusal(&error).map_or_else(|| unread(&error), |refusal| refusal.why.clone());
            if let Unread::Lost(why) = &why {
                self.lost.get_or_init(|| why.clone());
            }
            why
        })
    }
}

/// A key without encoding: [`Key::from`] would encode characters.
fn parse(key: &str) -> Result<Key, Unread> {
    Key::parse(key).map_err(|_| Unread::Other("its name cannot be a key".to_owned()))
}

/// The prefix of all keys in a folder.
fn below(folder: &str) -> String {
    if folder.is_empty() { String::new() } else { format!("{folder}/") }
}

impl PartialEq for ObjectStoreSource {
    fn eq(&self, other: &ObjectStoreSource) -> bool {
        self.url == other.url
    }
}

impl Eq for ObjectStoreSource {}

impl Hash for ObjectStoreSource {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.url.hash(state);
    }
}

/// Without the client, which holds credentials.
impl fmt::Debug for ObjectStoreSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.url.as_str()).finish()
    }
}

/// Whether a path names a place in a store.
pub fn is_stored(path: &std::path::Path) -> bool {
    path.to_str().is_some_and(|text| text.contains("://"))
}

/// The store, `s3://bucket`, and the key that a path names, `fleet/host=a`. Patterns are left in the key.
///
/// # Errors
/// A sentence.
pub(crate) fn split(text: &str) -> Result<(String, String), String> {
    let (scheme_name, rest) = text.split_once("://").unwrap_or_default();
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.contains('@') || text.contains('?') {
        // Not quoted: it may contain a password.
        return Err(format!(
            "a path in a store ({scheme_name}://BUCKET/FOLDER) has no user, password or query string; \
             credentials are taken from the environment, and a pattern has * or [...] but no ?"
        ));
    }
    let base = format!("{}://{authority}", scheme_name.to_ascii_lowercase());
    let url = Url::parse(&base)
        .ok()
        .filter(|url| url.host_str().is_some_and(|host| !host.is_empty()))
        .ok_or_else(|| {
            format!(
                "{text}: it names no store; use s3://BUCKET/FOLDER, or the plain path of a folder"
            )
        })?;
    let kind = scheme(&url).map_err(|why| format!("{text}: {why}"))?;
    let key = key.trim_matches('/');
    let key = match kind {
        ObjectStoreScheme::Http => Key::from_url_path(key).map_err(|e| e.to_string()),
        _ => Key::parse(key).map_err(|e| e.to_string()),
    };
    let key = key.map_err(|_| {
        format!("{text}: it cannot be a place in a store; use names with one / between them")
    })?;
    Ok((base, key.to_string()))
}

/// Kind of the store of a URL.
fn scheme(url: &Url) -> Result<ObjectStoreScheme, String> {
    let known = "use s3://, gs://, az://, https:// or http://";
    match ObjectStoreScheme::parse(url).map(|(kind, _)| kind) {
        Ok(kind @ ObjectStoreScheme::Http) => Ok(kind),
        // Two buckets of one host could not be distinguished.
        Ok(ObjectStoreScheme::AmazonS3) if url.scheme() == "https" => {
            Err("name it s3://BUCKET/FOLDER, and set AWS_ENDPOINT_URL where it is not AWS"
                .to_owned())
        }
        Ok(ObjectStoreScheme::MicrosoftAzure) if url.scheme() == "https" => {
            Err("name it az://CONTAINER/FOLDER, and set AZURE_STORAGE_ACCOUNT_NAME".to_owned())
        }
        Ok(ObjectStoreScheme::Local | ObjectStoreScheme::Memory) => {
            Err(format!("it is no store; name the folder itself, or {known}"))
        }
        Ok(kind) => Ok(kind),
        Err(_) => Err(format!("there is no such kind of store; {known}")),
    }
}

/// The runtime of clients. It lives as long as the process, because it owns connections.
fn runtime() -> Result<&'static Runtime, String> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let build = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).thread_name("stores").enable_all().build().ok()
    };
    RUNTIME.get_or_init(build).as_ref().ok_or_else(|| "no threads can be started".to_owned())
}

#[cfg(not(feature = "stores"))]
fn client(_: &Url) -> Result<Arc<dyn ObjectStore>, String> {
    Err("this vmtax-fleet was built without stores; build it with its feature stores, or name a folder of this machine".to_owned())
}

/// A client configured by the environment.
#[cfg(feature = "stores")]
fn client(url: &Url) -> Result<Arc<dyn ObjectStore>, String> {
    use std::time::Duration;

    use datafusion::object_store::aws::AmazonS3Builder;
    use datafusion::object_store::azure::MicrosoftAzureBuilder;
    use datafusion::object_store::client::SpawnedReqwestConnector;
    use datafusion::object_store::gcp::GoogleCloudStorageBuilder;
    use datafusion::object_store::http::HttpBuilder;
    use datafusion::object_store::{BackoffConfig, ClientOptions, RetryConfig};

    // Retry a busy store; give up an unreachable one after some seconds.
    let retry = RetryConfig {
        backoff: BackoffConfig { max_backoff: Duration::from_secs(2), ..BackoffConfig::default() },
        max_retries: 5,
        retry_timeout: Duration::from_secs(10),
    };
    let connector = SpawnedReqwestConnector::new(runtime()?.handle().clone());
    let text = url.as_str();
    let built: object_store::Result<Arc<dyn ObjectStore>> = match scheme(url)? {
        ObjectStoreScheme::AmazonS3 => {
            let builder = AmazonS3Builder::from_env().with_url(text).with_retry(retry);
            builder.with_http_connector(connector).build().map(|client| Arc::new(client) as _)
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(text).with_retry(retry);
            builder.with_http_connector(connector).build().map(|client| Arc::new(client) as _)
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(text).with_retry(retry);
            builder.with_http_connector(connector).build().map(|client| Arc::new(client) as _)
        }
        _ => {
            let options = ClientOptions::new().with_allow_http(url.scheme() == "http");
            let builder = HttpBuilder::new().with_url(text).with_client_options(options);
            let builder = builder.with_retry(retry).with_http_connector(connector);
            builder.build().map(|client| Arc::new(client) as _)
        }
    };
    // Its text can quote a setting.
    built.map_err(|_| {
        "no client can be made for it; check the settings of its kind of store in the environment \
         (account, region, endpoint, key file)"
            .to_owned()
    })
}

/// The error of a client, without its text.
fn unread(error: &object_store::Error) -> Unread {
    match error {
        object_store::Error::NotFound { .. } => return Unread::Missing,
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => return Unread::Closed,
        _ => {}
    }
    // The types of these are private to object_store.
    let texts: Vec<String> = causes(error).map(ToString::to_string).collect();
    let text = texts.join("; ");
    let after = text.split_once("status code: ").map(|(_, after)| after);
    let status = after.and_then(|after| after.get(..3)?.parse::<u16>().ok());
    if text.contains("169.254.169.254") || text.contains("metadata.google") {
        // The address of instance credentials in a cloud.
        return Unread::Closed;
    }
    if text.contains("URL scheme is not allowed") {
        return Unread::Other(
            "its endpoint is plain http; set AWS_ALLOW_HTTP=true (AZURE_ALLOW_HTTP, GOOGLE_ALLOW_HTTP) if that is meant".to_owned(),
        );
    }
    match status {
        Some(401 | 403 | 407) => Unread::Closed,
        Some(404) => Unread::Missing,
        Some(405 | 501) => Unread::Other(
            "its server does not list what it has; a server of files has to speak WebDAV"
                .to_owned(),
        ),
        Some(status @ (429 | 500..)) => Unread::Lost(format!("it answers with status {status}")),
        Some(status) => Unread::Other(format!(
            "its store answers with status {status}; check the name of the bucket, and the region"
        )),
        None if text.contains("redirect without LOCATION") => {
            Unread::Other("the bucket is in another region; set AWS_REGION".to_owned())
        }
        None => transport(error),
    }
}

#[cfg(not(feature = "stores"))]
fn transport(_: &object_store::Error) -> Unread {
    Unread::Other("the store failed".to_owned())
}

/// An error before there was a response.
#[cfg(feature = "stores")]
fn transport(error: &object_store::Error) -> Unread {
    use datafusion::object_store::client::{HttpError, HttpErrorKind};
    let kind = causes(error).find_map(|cause| Some(cause.downcast_ref::<HttpError>()?.kind()));
    let lost = |why: &str| Unread::Lost(why.to_owned());
    match kind {
        Some(HttpErrorKind::Connect) => lost("no connection"),
        Some(HttpErrorKind::Timeout) => lost("no answer in time"),
        Some(HttpErrorKind::Request | HttpErrorKind::Interrupted) => lost("the connection broke"),
        Some(_) => Unread::Other("its answer cannot be understood".to_owned()),
        None => Unread::Other("it does not answer as such a store does".to_owned()),
    }
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |cause: &&'a (dyn Error + 'static)| (*cause).source())
}

/// The read error below another error.
pub fn refusal<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a StoreRefusal> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// A failed read of a store.
#[derive(Clone, Debug)]
pub struct StoreRefusal {
    /// The URL of an object or a folder.
    pub place: String,
    /// Why.
    pub why: Unread,
}

impl fmt::Display for StoreRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.why)
    }
}

impl Error for StoreRefusal {}

/// A client that only reads, and whose errors have no text of the store.
#[derive(Debug)]
struct ReadOnlyClient {
    url: Url,
    inner: Arc<dyn ObjectStore>,
}

impl ReadOnlyClient {
    fn error(url: &Url, key: &str, error: &object_store::Error) -> object_store::Error {
        let refusal = StoreRefusal { place: format!("{url}{key}"), why: unread(error) };
        object_store::Error::Generic { store: "store", source: Box::new(refusal) }
    }

    fn refused<T>(&self) -> object_store::Result<T> {
        Err(object_store::Error::NotSupported {
            source: format!("{}: nothing is written to a store", self.url).into(),
        })
    }
}

impl fmt::Display for ReadOnlyClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url)
    }
}

#[async_trait::async_trait]
impl ObjectStore for ReadOnlyClient {
    async fn put_opts(
        &self,
        _: &Key,
        _: PutPayload,
        _: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.refused()
    }

    async fn put_multipart_opts(
        &self,
        _: &Key,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.refused()
    }

    async fn get_opts(&self, key: &Key, options: GetOptions) -> object_store::Result<GetResult> {
        let (url, name) = (self.url.clone(), key.to_string());
        let answer = self.inner.get_opts(key, options).await;
        let GetResult { payload, meta, range, attributes } =
            answer.map_err(|e| ReadOnlyClient::error(&url, &name, &e))?;
        let payload = match payload {
            GetResultPayload::Stream(stream) => GetResultPayload::Stream(
                stream.map_err(move |e| ReadOnlyClient::error(&url, &name, &e)).boxed(),
            ),
            file => file,
        };
        Ok(GetResult { payload, meta, range, attributes })
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, object_store::Result<Key>>,
    ) -> BoxStream<'static, object_store::Result<Key>> {
        let refused = self.refused();
        futures::stream::once(async { refused }).boxed()
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let (url, name) = (self.url.clone(), prefix.map(Key::to_string).unwrap_or_default());
        self.inner.list(prefix).map_err(move |e| ReadOnlyClient::error(&url, &name, &e)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> object_store::Result<ListResult> {
        let name = prefix.map(Key::to_string).unwrap_or_default();
        let answer = self.inner.list_with_delimiter(prefix).await;
        answer.map_err(|e| ReadOnlyClient::error(&self.url, &name, &e))
    }

    async fn copy_opts(&self, _: &Key, _: &Key, _: CopyOptions) -> object_store::Result<()> {
        self.refused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_stores() {
        let of = |text: &str| split(text);
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(of("s3://b"), pair("s3://b", ""));
        assert_eq!(of("S3://b/fleet/host=a/"), pair("s3://b", "fleet/host=a"));
        assert_eq!(of("s3://b/a%20b/[x]*"), pair("s3://b", "a%20b/[x]*"));
        assert_eq!(of("https://h:8080/a%20b"), pair("https://h:8080", "a b"));
        for (text, words) in [
            ("s3://key:secret@b/x", "has no user, password"),
            ("s3://b/x?X-Amz-Signature=secret", "query string"),
            ("s3:///x", "names no store"),
            ("s3://b/a//b", "one / between them"),
            ("s3://b/a/../c", "one / between them"),
            ("ftp://h/x", "no such kind of store"),
            ("file:///x", "the plain path of a folder"),
            ("https://s3.eu-west-1.amazonaws.com/b/x", "s3://BUCKET/FOLDER"),
            ("https://a.blob.core.windows.net/c/x", "az://CONTAINER/FOLDER"),
        ] {
            let why = of(text).unwrap_err();
            assert!(why.contains(words) && !why.contains("secret"), "{text}: {why}");
        }
    }
}
