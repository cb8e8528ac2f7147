//! Handlers of Feast's feature server: reads, pushes, and the declarations of the feature store.

use std::convert::Infallible;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use ledge_base::memory_budget::{MemoryAccount, MemoryBudgetExhausted, MemoryReservation};
use ledge_base::principal::Principal;
use ledge_features::online::{
    FeatureError, FeaturePush, FrameColumns, PushCounts, PushOutcome, bytes_of, bytes_of_json,
};
use ledge_features::view::{FeatureService, FeatureView};
use ledge_features::{FeatureCaller, FeatureStore};
use ledge_identity::access::CallerAccess;
use ledge_part::api_error::ApiError;
use ledge_part::body::{self, ReceivedBody};
use ledge_part::counted_body;
use ledge_part::reply::{json, json_bytes};
use ledge_part::route::PathParts;
use ledge_protocol::call::INLINE_JSON_BYTES_MAX;
use ledge_protocol::feast::describe::{self, EntityDocument, ServiceDocument, ViewDescription};
use ledge_protocol::feast::{self, FeastError, LongFeaturesAnswer, OnlineFeaturesCall};
use ledge_service::off_thread::off_thread;
use serde::Serialize;

use super::App;
use super::reply::FeastErrorResponse;

/// The header with the outcome of the rows of a push: Feast's answer has no place for it.
const PUSHED_HEADER: &str = "x-ledge-pushed";

/// The header with the columns of a push that no feature view has, by their names in the request, percent-encoded.
const IGNORED_HEADER: &str = "x-ledge-ignored";

/// The most names in [`IGNORED_HEADER`].
const IGNORED_NAMES_MAX: usize = 32;
/// The most bytes of each of these names, before they are percent-encoded.
const IGNORED_NAME_BYTES_MAX: usize = 128;
/// The most bytes of all these names, before they are percent-encoded: clients and proxies limit a header to 4,096
/// bytes or more.
const IGNORED_BYTES_MAX: usize = 2_000;

/// The most cells, features times entities, that are read and written at once. A larger answer is made in slices of
/// this size, off the async threads.
const SLICE_CELLS_MAX: usize = 5_000;

/// The bytes of a cell in an answer besides a long value: a number, its status and its time.
const CELL_TEXT_BYTES: usize = 64;

/// `POST /get-online-features`.
pub async fn get_online_features(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<CallerAccess>,
    request: Request,
) -> Result<Response, FeastErrorResponse> {
    let (parts, body) = request.into_parts();
    let ReceivedBody { bytes, account } = body::read(&parts, body, app.context()).await.map_err(FeastError::from)?;
    let store = app.serving().features();
    let (call, held) = decode(bytes, &account, feast::decode_online_features).await?;
    let caller = caller(principal, &access, &account);
    let _held = hold_columns(held, &call.request.entities)?;
    let cells = call.check(&store.registry())?;
    if cells > SLICE_CELLS_MAX {
        return long_answer(&parts.headers, store, call, caller, account).await;
    }
    let full_names = call.full_feature_names;
    let features = store.get_online_features(call.request, caller).await;
    let features = features.map_err(|error| FeastError::of_store(&error, "entities"))?;
    // Until the text is counted as that of the answer.
    let text = CELL_TEXT_BYTES * features.cells.count() + 2 * features.cells.value_bytes();
    let _text = account.take(text).map_err(|error| FeastError::from(ApiError::from(error)))?;
    let reply = feast::encode_online_features(&features, full_names)?;
    drop(features);
    Ok(body::compress_response(&parts.headers, json_bytes(reply), &account).await)
}

/// Reads slice by slice, so that other reads get their turns in between. Each slice is counted as memory before the
/// next is read.
async fn long_answer(
    headers: &HeaderMap,
    store: &FeatureStore,
    call: OnlineFeaturesCall,
    caller: FeatureCaller,
    account: MemoryAccount,
) -> Result<Response, FeastErrorResponse> {
    let of_store = |error: FeatureError| FeastError::of_store(&error, "entities");
    let no_room = |error: MemoryBudgetExhausted| FeastError::from(ApiError::from(error));
    let mut read = store.long_read(call.request, caller).map_err(of_store)?;
    // Reserve the part of the answer with a size that is known before a value is read.
    let mut hold = account.take(LongFeaturesAnswer::bytes_of(&read)).map_err(no_room)?;
    let mut answer = LongFeaturesAnswer::new(&read, call.full_feature_names)?;
    loop {
        let permit = store.long_read_turn().await;
        let slice = off_thread(&account, move || {
            let _permit = permit;
            let slice = read.next(SLICE_CELLS_MAX).map_err(of_store)?;
            if let Some(slice) = &slice {
                // The values of the slice, in addition to the answer, which grows by no more than these.
                let values = LongFeaturesAnswer::bytes_of_values(slice);
                hold.cover(answer.bytes() + values).map_err(no_room)?;
                answer.add(slice)?;
            }
            Ok::<_, FeastError>((slice.is_some(), read, answer, hold))
        });
        let more;
        (more, read, answer, hold) = slice.await?;
        if !more {
            break;
        }
    }

    drop(read);
    answer.shrink();
    hold.resize(answer.bytes()).map_err(no_room)?;
    let pieces = answer.into_pieces();
    let Some(encoding) = body::accepted_encoding(headers) else {
        let body = Body::from_stream(futures_util::stream::iter(pieces.map(Ok::<_, Infallible>)));
        return Ok(counted_body::keep_until_sent(json_bytes(body), hold));
    };
    let compressed = body::compress_pieces(encoding, pieces, &account).await;
    Ok(compressed.map_err(|error| FeastError::new(500, format!("the answer cannot be compressed: {error}")))?)
}

/// `POST /push`.
pub async fn push(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<CallerAccess>,
    request: Request,
) -> Result<Response, FeastErrorResponse> {
    let ReceivedBody { bytes, account } = read_body(&app, request).await?;
    let (push, held) = decode(bytes, &account, feast::decode_push).await?;
    let _held = hold_rows(held, &push.columns)?;
    write(&app, push, caller(principal, &access, &account)).await
}

/// `POST /write-to-online-store`.
pub async fn write_to_online_store(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<CallerAccess>,
    request: Request,
) -> Result<Response, FeastErrorResponse> {
    let registry = app.serving().features().registry();
    let ReceivedBody { bytes, account } = read_body(&app, request).await?;
    let (push, held) = decode(bytes, &account, move |body| feast::decode_write(body, &registry)).await?;
    let _held = hold_rows(held, &push.columns)?;
    write(&app, push, caller(principal, &access, &account)).await
}

fn caller(principal: Principal, access: &CallerAccess, account: &MemoryAccount) -> FeatureCaller {
    FeatureCaller { principal, views: access.feature_views().clone(), model: None, account: account.clone() }
}

/// Pushes rows. The answer is `null`, as from Feast's server; a header has the counts.
async fn write(app: &App, push: FeaturePush, caller: FeatureCaller) -> Result<Response, FeastErrorResponse> {
    let principal = caller.principal.clone();
    let target = push.target.clone();
    let PushOutcome { rows: PushCounts { accepted, outdated, duplicate, too_late }, ignored } = app
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
        response.headers_mut().insert(PUSHED_HEADER, counts);
    }
    if let Some(ignored) = ignored_header(&ignored) {
        response.headers_mut().insert(IGNORED_HEADER, ignored);
    }
    Ok(response)
}

fn ignored_header(names: &[String]) -> Option<HeaderValue> {
    let mut bytes = 0;
    let is_room = |name: &String| {
        bytes += name.len();
        bytes <= IGNORED_BYTES_MAX
    };
    let first = names.iter().take(IGNORED_NAMES_MAX).map(|name| percent_encoded(name));
    let mut listed: Vec<String> = first.take_while(is_room).collect();
    let more = names.len() - listed.len();
    listed.extend((more > 0).then(|| format!("and {more} more")));
    if listed.is_empty() { None } else { HeaderValue::from_str(&listed.join(", ")).ok() }
}

/// The beginning of a name, with every byte but letters, digits, `_`, `-`, `.` and `~` as `%XX` (RFC 3986, section
/// 2.1).
fn percent_encoded(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes().take(IGNORED_NAME_BYTES_MAX) {
        if byte.is_ascii_alphanumeric() || b"_-.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.extend(["%", &hex::encode_upper([byte])]);
        }
    }
    text
}

/// `POST /materialize` and `/materialize-incremental`, which need an offline store.
pub async fn materialize(State(app): State<App>, request: Request) -> FeastErrorResponse {
    let (parts, body) = request.into_parts();
    body::discard_unless_expected(&parts.headers, body, app.context().limits()).await;
    let message =
        "Ledge has no offline store to materialize from: write rows with /push, /write-to-online-store or MQTT";
    FeastError::new(StatusCode::NOT_IMPLEMENTED.as_u16(), message).into()
}

async fn read_body(app: &App, request: Request) -> Result<ReceivedBody, FeastError> {
    let (parts, body) = request.into_parts();
    body::read(&parts, body, app.context()).await.map_err(FeastError::from)
}

/// Decodes a body, a large one off the async thread. Counts the cells of its frame before they are made.
async fn decode<T: Send + 'static>(
    body: Bytes,
    account: &MemoryAccount,
    decode: impl FnOnce(&[u8]) -> Result<T, FeastError> + Send + 'static,
) -> Result<(T, MemoryReservation), FeastError> {
    let hold = account.take(bytes_of_json(&body)).map_err(|error| FeastError::from(ApiError::from(error)))?;
    let call = if body.len() > INLINE_JSON_BYTES_MAX {
        off_thread(account, move || decode(&body)).await
    } else {
        decode(&body)
    };
    Ok((call?, hold))
}

/// Counts the cells of a frame as memory, and no more.
fn hold_columns(mut hold: MemoryReservation, columns: &FrameColumns) -> Result<MemoryReservation, FeastError> {
    hold.resize(bytes_of(columns)).map_err(|error| FeastError::from(ApiError::from(error)))?;
    Ok(hold)
}

/// Counts a frame and the rows that are made of it: typed, and as the journal has them.
fn hold_rows(mut hold: MemoryReservation, columns: &FrameColumns) -> Result<MemoryReservation, FeastError> {
    hold.resize(3 * bytes_of(columns)).map_err(|error| FeastError::from(ApiError::from(error)))?;
    Ok(hold)
}

#[derive(Serialize)]
struct ViewsDocument<'a> {
    feature_views: Vec<ViewDescription<'a>>,
}

#[derive(Serialize)]
struct ServicesDocument<'a> {
    feature_services: Vec<ServiceDocument<'a>>,
}

#[derive(Serialize)]
struct EntitiesDocument<'a> {
    entities: Vec<EntityDocument<'a>>,
}

/// `GET /feature-views`.
pub async fn views(State(app): State<App>) -> Response {
    let registry = app.serving().features().registry();
    json(&ViewsDocument { feature_views: registry.views().map(|view| (&**view).into()).collect() })
}

/// `GET /feature-views/{feature_view}`.
pub async fn view(State(app): State<App>, PathParts(path): PathParts) -> Result<Response, ApiError> {
    let name = path.get("feature_view").map_or("", String::as_str);
    let registry = app.serving().features().registry();
    let view: &FeatureView = registry.view(name).map_err(|error| not_found(&error))?;
    Ok(json(&ViewDescription::from(view)))
}

/// `GET /feature-services`.
pub async fn services(State(app): State<App>) -> Response {
    let registry = app.serving().features().registry();
    json(&ServicesDocument { feature_services: registry.services().map(|service| (&**service).into()).collect() })
}

/// `GET /feature-services/{feature_service}`.
pub async fn service(State(app): State<App>, PathParts(path): PathParts) -> Result<Response, ApiError> {
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
    json(&EntitiesDocument { entities: describe::entities(&registry) })
}

fn not_found(error: &FeatureError) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, error.to_string())
}
