//! API keys: all of them, a new one, the end of one. And the ways in that need no key.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use ledge_base::clock;
use ledge_base::names::{KeyName, ModelName};
use ledge_base::serde_messages::in_json;
use ledge_base::token_bucket::CallRate;
use ledge_base::toml_check::in_range;
use ledge_identity::access::{Role, ViewScope};
use ledge_identity::access_config::AccessConfig;
use ledge_identity::api_key::ApiKey;
use ledge_identity::authentication::{ApiKeyChangeError, Authenticator, Caller};
use ledge_identity::keys::{ApiKeyDocument, ApiKeyExpiry, ApiKeyRecord, ApiKeysError, NewApiKey};
use ledge_part::api_error::ApiError;
use ledge_part::body;
use ledge_part::handler_context::HandlerContext;
use ledge_part::reply::json;
use ledge_part::route::needs::ADMINISTER;
use ledge_part::route::{PathParts, Route, RouteScope};
use serde::{Deserialize, Serialize};

/// The largest body of a new key, in bytes: some hundred models and feature views, which fit into one audit record.
const NEW_KEY_BYTES_MAX: usize = 32 << 10;

/// The routes of API keys.
pub const ROUTES: &[Route<KeysHttpState>] = &[
    Route::get("/keys", ADMINISTER, || get(list)).scope(RouteScope::Box).caller(),
    Route::post("/keys", ADMINISTER, || post(create)).scope(RouteScope::Box).caller().audited(),
    Route::post("/keys/{key}/revoke", ADMINISTER, || post(revoke)).scope(RouteScope::Box).caller().audited(),
];

/// The state of the routes.
#[derive(Debug, Clone)]
pub struct KeysHttpState {
    pub authenticator: Authenticator,
    /// `[access]`.
    pub access: Arc<AccessConfig>,
    pub context: HandlerContext,
}

#[derive(Serialize)]
struct KeysDocument<'a> {
    /// The time of the box, for which the states are.
    at: String,
    keys: Vec<ListedKeyDocument>,
    is_half_full: bool,
    /// The ways in without a key.
    access: &'a AccessConfig,
}

#[derive(Serialize)]
struct ListedKeyDocument {
    #[serde(flatten)]
    key: ApiKeyDocument,
    /// The last call with it since the start.
    last_used: Option<String>,
    /// `true` for the key of this call.
    is_caller: bool,
}

/// `GET /keys`.
async fn list(State(served): State<KeysHttpState>, Extension(caller): Extension<Caller>) -> Result<Response, ApiError> {
    let list = served.authenticator.keys().await.map_err(store_error)?;
    let document = |key: &ledge_identity::authentication::ListedApiKey| ListedKeyDocument {
        key: key.document(list.at_ms),
        last_used: key.last_used_ms.map(clock::rfc3339),
        is_caller: caller.key_id() == Some(key.record.id),
    };
    Ok(unstored(json(&KeysDocument {
        at: clock::rfc3339(list.at_ms),
        keys: list.keys.iter().map(document).collect(),
        is_half_full: list.is_half_full,
        access: &served.access,
    })))
}

/// A new key, as the command line describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewKeyBody {
    name: KeyName,
    roles: Vec<Role>,
    /// Without it, all models.
    models: Option<Vec<ModelName>>,
    /// Without it all feature views, or none where `models` names some.
    feature_views: Option<ViewScope>,
    #[serde(default)]
    expires: ApiKeyExpiry,
    #[serde(default)]
    max_rate: CallRate,
    #[serde(default, deserialize_with = "in_range::<0, 1_000_000, _, _>")]
    max_concurrent: u32,
}

#[derive(Serialize)]
struct CreatedKeyDocument {
    #[serde(flatten)]
    document: ApiKeyDocument,
    /// The key itself, which is shown only here.
    key: String,
}

/// `POST /keys`.
async fn create(
    State(served): State<KeysHttpState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts, body, &served.context).await?;
    let now_ms = clock::FLOOR.now_millis();
    let new = new_key(&body.bytes, now_ms)?;

    let (authenticator, by) = (served.authenticator.clone(), caller.clone());
    let creating = async move { authenticator.create_key(&by, new).await };
    let (key, record) = served.context.run_to_completion(creating).await?.map_err(change_error)?;
    tracing::info!(name: "key.created", by = %caller.principal, key = %record.name, id = %record.id, "an API key was created");
    Ok(unstored(json(&created(&key, &record, now_ms))))
}

fn created(key: &ApiKey, record: &ApiKeyRecord, now_ms: u64) -> CreatedKeyDocument {
    CreatedKeyDocument { document: ApiKeyDocument::new(record, now_ms), key: key.reveal() }
}

#[derive(Serialize)]
struct RevokedKeyDocument {
    #[serde(flatten)]
    document: ApiKeyDocument,
    /// `true` if the caller has used this key, which does not work any more.
    is_caller: bool,
}

/// `POST /keys/{key}/revoke`.
async fn revoke(
    State(served): State<KeysHttpState>,
    Extension(caller): Extension<Caller>,
    PathParts(path): PathParts,
    request: Request,
) -> Result<Response, ApiError> {
    body::discard(request.into_body(), served.context.limits()).await;
    let what = path.get("key").cloned().unwrap_or_default();

    let (authenticator, by) = (served.authenticator.clone(), caller.clone());
    let revoking = async move { authenticator.revoke_key(&by, what).await };
    let record = served.context.run_to_completion(revoking).await?.map_err(change_error)?;
    tracing::info!(by = %caller.principal, key = %record.name, id = %record.id, "an API key was revoked");
    let is_caller = caller.key_id() == Some(record.id);
    Ok(unstored(json(&RevokedKeyDocument {
        document: ApiKeyDocument::new(&record, clock::FLOOR.now_millis()),
        is_caller,
    })))
}

/// The new key that a body describes, with the checks of the command line.
fn new_key(body: &[u8], now_ms: u64) -> Result<NewApiKey, ApiError> {
    if body.len() > NEW_KEY_BYTES_MAX {
        let message = format!("the body is larger than {NEW_KEY_BYTES_MAX} bytes, the most for a new key");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    let wrong = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
    let new: NewKeyBody = serde_json::from_slice(body)
        .map_err(|error| wrong(format!("the body does not describe a new key: {}", in_json(&error.to_string()))))?;
    check_grant(&new.roles, new.models.as_deref())?;
    Ok(NewApiKey {
        name: new.name,
        roles: new.roles,
        models: new.models,
        feature_views: new.feature_views,
        expires_ms: new.expires.millis(now_ms).map_err(|error| wrong(format!("expires {error}")))?,
        max_rate: new.max_rate,
        max_concurrent: new.max_concurrent,
    })
}

/// Refuses a key or a sign-in without a role, and one for no model. It would be useless, and a program that forgot to
/// fill the list of models must not get one for all of them.
pub(crate) fn check_grant(roles: &[Role], models: Option<&[ModelName]>) -> Result<(), ApiError> {
    let message = if roles.is_empty() {
        "roles: name at least one role; GET /roles says what each may"
    } else if models.is_some_and(<[_]>::is_empty) {
        "models: name at least one model, or leave it out for all models"
    } else {
        return Ok(());
    };
    Err(ApiError::new(StatusCode::BAD_REQUEST, message))
}

/// Marks an answer that no cache may keep.
pub(crate) fn unstored(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn change_error(error: ApiKeyChangeError) -> ApiError {
    let status = match error {
        ApiKeyChangeError::Store(error) => return store_error(error),
        ApiKeyChangeError::CallerEnded => StatusCode::UNAUTHORIZED,
        ApiKeyChangeError::NoTurn
        | ApiKeyChangeError::Unrecorded { .. }
        | ApiKeyChangeError::RevokedUnrecorded { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    ApiError::new(status, error.to_string())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn store_error(error: ApiKeysError) -> ApiError {
    let status = match error {
        ApiKeysError::NameTaken { .. } => StatusCode::CONFLICT,
        ApiKeysError::NoRole | ApiKeysError::NameIsKey => StatusCode::BAD_REQUEST,
        ApiKeysError::Unknown { .. } => StatusCode::NOT_FOUND,
        ApiKeysError::Full { .. } => StatusCode::INSUFFICIENT_STORAGE,
        ApiKeysError::NoRandom(_) => StatusCode::INTERNAL_SERVER_ERROR,
        ApiKeysError::Unreadable { .. }
        | ApiKeysError::Damaged { .. }
        | ApiKeysError::Exposed { .. }
        | ApiKeysError::Unwritable { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    ApiError::new(status, error.with_cause())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn read(body: &serde_json::Value) -> Result<NewApiKey, String> {
        new_key(body.to_string().as_bytes(), NOW_MS).map_err(|error| error.message)
    }

    #[test]
    fn only_an_admin_of_the_whole_box_may() {
        for Route { rule, .. } in ROUTES {
            assert_eq!(
                (rule.roles().collect::<Vec<_>>(), rule.scope),
                (vec![Role::Admin], RouteScope::Box),
                "{}",
                rule.path
            );
        }
    }

    #[test]
    fn a_body_has_what_the_command_line_has_and_its_defaults() {
        let least = read(&json!({"name": "till-7", "roles": ["infer"]})).unwrap();
        assert_eq!((least.models, least.feature_views, least.max_concurrent), (None, None, 0));
        assert_eq!(least.expires_ms, Some(NOW_MS + 364 * 86_400_000));
        let all = json!({
            "name": "erp", "roles": ["infer", "feature-writer"], "models": ["minilm"], "feature_views": ["*"],
            "expires": "never", "max_rate": 2.5, "max_concurrent": 3,
        });
        let all = read(&all).unwrap();
        assert_eq!((all.models.map(|models| models.len()), all.feature_views), (Some(1), Some(ViewScope::ALL)));
        assert_eq!((all.expires_ms, all.max_rate, all.max_concurrent), (None, CallRate::new(2.5).unwrap(), 3));
    }

    #[test]
    fn each_wrong_field_is_named_with_what_is_expected() {
        let changed = |name: &str, value: serde_json::Value| {
            let mut body = json!({"name": "till-7", "roles": ["infer"]});
            body[name] = value;
            read(&body).unwrap_err()
        };
        for (name, value, words) in [
            ("name", json!("a b"), "a b"),
            ("roles", json!([]), "roles: name at least one role"),
            ("roles", json!(["emperor"]), "expected one of viewer, infer"),
            ("models", json!([]), "leave it out for all models"),
            ("models", json!(["../x"]), "../x"),
            ("feature_views", json!(["a", "*"]), "stands for all names"),
            ("expires", json!("tomorrow"), "expected a duration such as 30m"),
            ("expires", json!("2020-01-01T00:00:00Z"), "expires is in the past"),
            ("max_rate", json!(-1), "calls per second"),
            ("max_concurrent", json!(1_000_001), "1000000"),
            ("key", json!("ledge_"), "key"),
        ] {
            let message = changed(name, value);
            assert!(message.contains(words), "{name}: {message}");
        }
        assert!(read(&json!([])).is_err() && read(&json!({"roles": ["infer"]})).unwrap_err().contains("name"));
        let large = format!("{{\"name\":\"{}\"}}", "x".repeat(NEW_KEY_BYTES_MAX));
        assert_eq!(new_key(large.as_bytes(), NOW_MS).unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[test]
    fn the_key_is_in_the_answer_to_its_creation_and_in_no_message() {
        let folder = tempfile::tempdir().unwrap();
        let store = ledge_identity::keys::ApiKeyStore::new(folder.path());
        let new = read(&json!({"name": "till-7", "roles": ["infer"]})).unwrap();
        let (key, record) = store.create(&new, NOW_MS).unwrap();
        let document = serde_json::to_value(created(&key, &record, NOW_MS)).unwrap();
        assert_eq!((&document["key"], &document["state"]), (&json!(key.reveal()), &json!("valid")));
        assert_eq!(document.as_object().unwrap().keys().filter(|name| name.contains("blake3")).count(), 0);
        let taken = store_error(store.create(&new, NOW_MS).unwrap_err());
        assert_eq!(taken.status, StatusCode::CONFLICT);
        assert!(taken.message.contains("'till-7'") && !taken.message.contains(&key.reveal()[15..]), "{taken:?}");
    }
}
