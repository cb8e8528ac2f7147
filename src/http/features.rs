//! The feature store, as Feast's feature server offers it, and what is declared in it.

use std::convert::Infallible;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use ledge_base::memory_budget::{Account, Hold};
use ledge_base::principal::Principal;
use ledge_features::online::{Columns, FeatureError, PushOutcome, Pushed, bytes_of};
use ledge_features::view::{FeatureService, FeatureView};
use ledge_features::{FeatureCaller, FeatureStore};
use ledge_identity::access::Access;
use ledge_part::body::{self, Received};
use ledge_part::failure::Failure;
use ledge_part::held::{self, ReturnsMemory};
use ledge_part::reply::{json, json_bytes};
use ledge_part::route::PathParts;
use ledge_protocol::call::INLINE_JSON_BYTES_MAX;
use ledge_protocol::feast::describe::{self, EntityDocument, ServiceDocument, ViewDocument};
use ledge_protocol::feast::{self, FeastError, LongAnswer, OnlineFeaturesCall, PushCall, PushMode};
use ledge_service::off_thread::off_thread;
use serde::Serialize;

use super::App;
use super::reply::FeastFailure;

/// Says what came of the rows of a push: Feast's answer has no place for it.
const PUSHED: &str = "x-ledge-pushed";

/// Names the columns of a push that no feature view has. The names are those of the request, percent-encoded.
const IGNORED: &str = "x-ledge-ignored";

/// The most names in [`IGNORED`], the most bytes of each as it came, and about the most of all: clients and proxies have limits
/// for a header, of 4,096 bytes and more.
const MOST_IGNORED: usize = 32;
const LONGEST_IGNORED: usize = 128;
const IGNORED_BYTES_MAX: usize = 2_000;

/// Says what came of the part of a push that is for an offline store.
const OFFLINE: &str = "x-ledge-offline";

/// An answer of more cells than this, features times entities, is read and written in slices of as many, off the async threads.
const MANY_CELLS: usize = 5_000;

/// `POST /get-online-features`.
pub async fn get_online_features(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<Access>,
    request: Request,
) -> Result<Response, FeastFailure> {
    let (parts, body) = request.into_parts();
    let Received { bytes, account } = body::read(&parts, body, app.web()).await.map_err(FeastError::from)?;
    let store = app.serving().features();
    let call = decode(bytes, &account, feast::decode_online_features).await?;
    let caller = caller(principal, &access);
    let _held = held(&account, &call.request.entities)?;
    if call.check_size(&store.registry())? > MANY_CELLS {
        return long_answer(&parts.headers, store, call, caller, account).await;
    }
    let full_names = call.full_feature_names;
    let features = store.get_online_features(call.request, caller).await;
    let features = features.map_err(|error| FeastError::of_store(&error, "entities"))?;
    let reply = feast::encode_online_features(&features, full_names)?;
    Ok(body::pack(&parts.headers, json_bytes(reply), &account).await)
}

/// Reads slice by slice, so that others have their turns between, and counts what has come of it before more is read.
async fn long_answer(
    headers: &HeaderMap,
    store: &FeatureStore,
    call: OnlineFeaturesCall,
    caller: FeatureCaller,
    account: Account,
) -> Result<Response, FeastFailure> {
    let of_store = |error: FeatureError| FeastError::of_store(&error, "entities");
    let mut read = store.long_read(call.request, caller).map_err(of_store)?;
    let mut answer = LongAnswer::new(&read, call.full_feature_names)?;
    let mut hold = account.hold();
    loop {
        hold.cover(answer.bytes()).map_err(|error| FeastError::from(Failure::from(error)))?;
        let turn = store.long_read_turn().await;
        let slice = off_thread(&account, move || {
            let _turn = turn;
            let slice = read.next(MANY_CELLS).map_err(of_store)?;
            slice.as_deref().map(|slice| answer.add(slice)).transpose()?;
            Ok::<_, FeastError>((slice.is_some(), read, answer))
        });
        let more;
        (more, read, answer) = slice.await?;
        if !more {
            break;
        }
    }
    drop(read);
    hold.resize(answer.bytes()).map_err(|error| FeastError::from(Failure::from(error)))?;
    let pieces = answer.into_pieces();
    let Some(encoding) = body::accepted(headers) else {
        let body = Body::from_stream(futures_util::stream::iter(pieces.map(Ok::<_, Infallible>)));
        return Ok(held::held(json_bytes(body), (hold, ReturnsMemory)));
    };
    let packed = body::pack_pieces(encoding, pieces, &account).await;
    let packed = packed.map_err(|error| FeastError::new(500, format!("the answer cannot be packed: {error}")))?;
    Ok(held::held(packed, ReturnsMemory))
}

/// `POST /push`.
pub async fn push(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<Access>,
    request: Request,
) -> Result<Response, FeastFailure> {
    let Received { bytes, account } = received(&app, request).await?;
    let call = decode(bytes, &account, feast::decode_push).await?;
    let _held = held(&account, &call.push.columns)?;
    write(&app, call, caller(principal, &access)).await
}

/// `POST /write-to-online-store`.
pub async fn write_to_online_store(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<Access>,
    request: Request,
) -> Result<Response, FeastFailure> {
    let registry = app.serving().features().registry();
    let Received { bytes, account } = received(&app, request).await?;
    let call = decode(bytes, &account, move |body| feast::decode_write(body, &registry)).await?;
    let _held = held(&account, &call.push.columns)?;
    write(&app, call, caller(principal, &access)).await
}

fn caller(principal: Principal, access: &Access) -> FeatureCaller {
    FeatureCaller { principal, views: access.feature_views().clone(), model: None }
}

/// Writes rows. The answer is `null`, as from Feast's server; a header has the counts.
async fn write(app: &App, call: PushCall, caller: FeatureCaller) -> Result<Response, FeastFailure> {
    let PushCall { push, mode } = call;
    let principal = caller.principal.clone();
    let target = push.target.clone();
    let PushOutcome { rows: Pushed { accepted, outdated, duplicate, too_late }, ignored } = app
        .serving()
        .features()
        .push(push, caller)
        .await
        .map_err(|error| FeastError::of_store(&error, "df"))
        .inspect_err(|error| tracing::debug!(to = ?target, %principal, reason = error.message(), "push refused"))?;
    let ignored_columns = ignored.len();
    tracing::debug!(to = ?target, %principal, accepted, outdated, duplicate, too_late, ignored_columns, "pushed");
    let mut response = json_bytes("null");
    let counts = format!("accepted={accepted}, outdated={outdated}, duplicate={duplicate}, too_late={too_late}");
    if let Ok(counts) = HeaderValue::from_str(&counts) {
        response.headers_mut().insert(PUSHED, counts);
    }
    if let Some(ignored) = ignored_header(&ignored) {
        response.headers_mut().insert(IGNORED, ignored);
    }
    if mode == PushMode::OnlineAndOffline {
        response.headers_mut().insert(OFFLINE, HeaderValue::from_static("none"));
    }
    Ok(response)
}

fn ignored_header(names: &[String]) -> Option<HeaderValue> {
    let mut bytes = 0;
    let is_room = |name: &String| {
        bytes += name.len();
        bytes <= IGNORED_BYTES_MAX
    };
    let first = names.iter().take(MOST_IGNORED).map(|name| percent_encoded(name));
    let mut listed: Vec<String> = first.take_while(is_room).collect();
    let more = names.len() - listed.len();
    listed.extend((more > 0).then(|| format!("and {more} more")));
    if listed.is_empty() { None } else { HeaderValue::from_str(&listed.join(", ")).ok() }
}

/// The beginning of a name, with every byte but letters, digits, `_`, `-`, `.` and `~` as `%XX` (RFC 3986, section 2.1).
fn percent_encoded(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes().take(LONGEST_IGNORED) {
        if byte.is_ascii_alphanumeric() || b"_-.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.extend(["%", &hex::encode_upper([byte])]);
        }
    }
    text
}

/// `POST /materialize` and `/materialize-incremental`: there is nothing to materialize from.
pub async fn materialize(State(app): State<App>, request: Request) -> FeastFailure {
    let (parts, body) = request.into_parts();
    body::turn_down(&parts.headers, body, app.web().limits()).await;
    let message =
        "Ledge has no offline store to materialize from: rows come in by /push, /write-to-online-store or MQTT";
    FeastError::new(StatusCode::NOT_IMPLEMENTED.as_u16(), message).into()
}

async fn received(app: &App, request: Request) -> Result<Received, FeastError> {
    let (parts, body) = request.into_parts();
    body::read(&parts, body, app.web()).await.map_err(FeastError::from)
}

/// Decodes a body, a large one off the async thread.
async fn decode<T: Send + 'static>(
    body: Bytes,
    account: &Account,
    decode: impl FnOnce(&[u8]) -> Result<T, FeastError> + Send + 'static,
) -> Result<T, FeastError> {
    if body.len() > INLINE_JSON_BYTES_MAX { off_thread(account, move || decode(&body)).await } else { decode(&body) }
}

/// Counts the cells of a frame, of which there are never too many to be made first.
fn held(account: &Account, columns: &Columns) -> Result<Hold, FeastError> {
    account.take(bytes_of(columns)).map_err(|error| FeastError::from(Failure::from(error)))
}

#[derive(Serialize)]
struct Views<'a> {
    feature_views: Vec<ViewDocument<'a>>,
}

#[derive(Serialize)]
struct Services<'a> {
    feature_services: Vec<ServiceDocument<'a>>,
}

#[derive(Serialize)]
struct Entities<'a> {
    entities: Vec<EntityDocument<'a>>,
}

/// `GET /feature-views`.
pub async fn views(State(app): State<App>) -> Response {
    let registry = app.serving().features().registry();
    json(&Views { feature_views: registry.views().map(|view| (&**view).into()).collect() })
}

/// `GET /feature-views/{feature_view}`.
pub async fn view(State(app): State<App>, PathParts(path): PathParts) -> Result<Response, Failure> {
    let name = path.get("feature_view").map_or("", String::as_str);
    let registry = app.serving().features().registry();
    let view: &FeatureView = registry.view(name).map_err(|error| not_found(&error))?;
    Ok(json(&ViewDocument::from(view)))
}

/// `GET /feature-services`.
pub async fn services(State(app): State<App>) -> Response {
    let registry = app.serving().features().registry();
    json(&Services { feature_services: registry.services().map(|service| (&**service).into()).collect() })
}

/// `GET /feature-services/{feature_service}`.
pub async fn service(State(app): State<App>, PathParts(path): PathParts) -> Result<Response, Failure> {
    let name = path.get("feature_service").map_or("", String::as_str);
    let registry = app.serving().features().registry();
    let service = registry.services().find(|service| &*service.name == name);
    let unknown = || not_found(&FeatureError::UnknownService { service: name.to_owned() });
    let service: &FeatureService = service.ok_or_else(unknown)?;
    Ok(json(&ServiceDocument::from(service)))
}

/// `GET /entities`.
pub async fn entities(State(app): State<App>) -> Response {
    let registry = app.serving().features().registry();
    json(&Entities { entities: describe::entities(&registry) })
}

fn not_found(error: &FeatureError) -> Failure {
    Failure::new(StatusCode::NOT_FOUND, error.to_string())
}
