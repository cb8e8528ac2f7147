//! Sign-in of people at the page: codes, sessions, and their end.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use ledge_base::names::{KeyName, ModelName};
use ledge_base::serde_messages::in_json;
use ledge_identity::access::{CallerAccess, Role, ViewScope};
use ledge_identity::authentication::{
    BegunSession, CODE_LIFETIME, Caller, CallerProof, ListedSession, Peer, SESSION_LIFETIME, SessionEnd, SignInError,
    SignInGrant, SignInSecret,
};
use ledge_identity::sign_in::{SessionHalves, SessionId, SessionSecret};
use ledge_part::access::refused_credential;
use ledge_part::api_error::ApiError;
use ledge_part::body;
use ledge_part::reply::json;
use ledge_part::route::needs::{ADMINISTER, PUBLIC};
use ledge_part::route::{PathParts, Route, RouteScope};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::http::ANY_ROLE;
use crate::keys::{KeysHttpState, check_grant, unstored};

/// The largest body of a sign-in, in bytes. Its sender has no permission yet.
const SIGN_IN_BYTES_MAX: usize = 1024;

/// The routes of sign-in.
pub const ROUTES: &[Route<KeysHttpState>] = &[
    Route::post("/session", PUBLIC, || post(sign_in)).caller(),
    Route::post("/session/end", ANY_ROLE, || post(sign_out)).caller(),
    Route::post("/session/codes", ADMINISTER, || post(make_code)).scope(RouteScope::Box).caller().audited(),
    Route::get("/sessions", ADMINISTER, || get(list)).scope(RouteScope::Box).caller(),
    Route::post("/sessions/{session}/end", ADMINISTER, || post(end)).scope(RouteScope::Box).audited(),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum SignInBody {
    Code(String),
    Key(String),
}

#[derive(Serialize)]
struct SignedInDocument {
    /// The value of the header `x-ledge-session`. It has an effect only with the cookie of the same answer.
    session: String,
    /// The caller, as in the audit log.
    name: String,
}

/// `POST /session`: signs a person in.
async fn sign_in(
    State(served): State<KeysHttpState>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, ApiError> {
    let (received, _) = body::peek(request.into_body(), SIGN_IN_BYTES_MAX + 1).await;
    if received.len() > SIGN_IN_BYTES_MAX {
        let message = format!("the body is larger than {SIGN_IN_BYTES_MAX} bytes, the most for a sign-in");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    let body: SignInBody = serde_json::from_slice(&received).map_err(|error| {
        let message = format!("{}: expected {{\"code\": CODE}} or {{\"key\": KEY}}", in_json(&error.to_string()));
        ApiError::new(StatusCode::BAD_REQUEST, message)
    })?;
    let secret = match &body {
        SignInBody::Code(code) => SignInSecret::Code(code),
        SignInBody::Key(key) => SignInSecret::Key(key.trim().as_bytes()),
    };
    let BegunSession { halves: SessionHalves { id, cookie, token }, principal } =
        served.authenticator.sign_in(&peer, &secret).map_err(|error| sign_in_error(&error))?;
    tracing::info!(name: "person.signed_in", %principal, session = %id, "signed in at the console");
    let document = SignedInDocument { session: format!("{id}.{}", token.reveal()), name: principal.to_string() };
    Ok(with_cookie(unstored(json(&document)), id, Some(&cookie)))
}

fn sign_in_error(error: &SignInError) -> ApiError {
    match error {
        SignInError::Credential(refused) => refused_credential(refused),
        SignInError::Transport => ApiError::new(StatusCode::FORBIDDEN, error.to_string()),
        SignInError::Random => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Adds the cookie of a session, or for `None` ends it. Browsers keep it until they are closed.
fn with_cookie(mut response: Response, id: SessionId, cookie: Option<&SessionSecret>) -> Response {
    let (value, end) = cookie.map_or((String::new(), "; Max-Age=0"), |cookie| (cookie.reveal(), ""));
    let text = format!("{}={value}; Path=/; Secure; HttpOnly; SameSite=Strict{end}", id.cookie_name());
    // Its characters are those of base64, hexadecimal digits and the words above.
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
    response
}

/// `POST /session/end`: signs the caller out.
async fn sign_out(
    State(served): State<KeysHttpState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    body::discard(request.into_body(), served.context.limits()).await;
    let id = caller.session_id().ok_or_else(|| {
        ApiError::new(StatusCode::CONFLICT, "this caller did not sign in: there is nothing to sign out of")
    })?;
    served.authenticator.end_session(id, SessionEnd::SignedOut);
    Ok(with_cookie(unstored(json(&json!({}))), id, None))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CodeBody {
    name: KeyName,
    roles: Vec<Role>,
    /// Without it, all models.
    models: Option<Vec<ModelName>>,
    /// Without it all feature views, or none where `models` names some.
    feature_views: Option<ViewScope>,
}

#[derive(Serialize)]
struct CodeDocument {
    /// The code, which is shown only here.
    code: String,
    name: KeyName,
    roles: Vec<Role>,
    /// The time in which it can be used, once.
    seconds: u64,
    idle_minutes: u32,
    hours: u64,
}

/// `POST /session/codes`: a code with which a person signs in. Only for callers on the box, so that a stolen key makes
/// none that outlives it.
async fn make_code(
    State(served): State<KeysHttpState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let received = body::read(&parts, body, &served.context).await?;
    let CodeBody { name, roles, models, feature_views } = serde_json::from_slice(&received.bytes)
        .map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, in_json(&error.to_string())))?;
    check_grant(&roles, models.as_deref())?;
    if caller.proof != CallerProof::User {
        let message = "codes are made on the box, over the Unix socket: `sudo ledge login`";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message));
    }

    let access = CallerAccess::new(roles.iter().copied(), models, feature_views);
    let grant = SignInGrant { name: name.clone(), access };
    let made = served.authenticator.sign_in_code(&caller.principal, grant);
    let code = made.map_err(|error| sign_in_error(&error))?;
    Ok(unstored(json(&CodeDocument {
        code: code.reveal(),
        name,
        roles,
        seconds: CODE_LIFETIME.as_secs(),
        idle_minutes: served.access.session_idle_minutes,
        hours: SESSION_LIFETIME.as_secs() / 3600,
    })))
}

#[derive(Serialize)]
struct SessionDocument {
    id: String,
    /// The caller, as in the audit log.
    name: String,
    age_s: u64,
    /// The time since its last request that a person caused.
    idle_s: u64,
    /// True for the session of this call.
    is_caller: bool,
}

/// `GET /sessions`: the people who are signed in.
async fn list(State(served): State<KeysHttpState>, Extension(caller): Extension<Caller>) -> Response {
    let sessions = served.authenticator.list_sessions();
    let document = |session: &ListedSession| SessionDocument {
        id: session.id.to_string(),
        name: session.principal.to_string(),
        age_s: session.age.as_secs(),
        idle_s: session.idle.as_secs(),
        is_caller: caller.session_id() == Some(session.id),
    };
    unstored(json(&json!({ "sessions": sessions.iter().map(document).collect::<Vec<_>>() })))
}

/// `POST /sessions/{session}/end`: ends a session, or `all` of them.
async fn end(
    State(served): State<KeysHttpState>,
    PathParts(path): PathParts,
    request: Request,
) -> Result<Response, ApiError> {
    body::discard(request.into_body(), served.context.limits()).await;
    let named = path.get("session").map_or("", String::as_str);
    let ids: Vec<SessionId> = if named == "all" {
        served.authenticator.list_sessions().iter().map(|session| session.id).collect()
    } else {
        named.parse().into_iter().collect()
    };
    let ended = ids.iter().filter(|id| served.authenticator.end_session(**id, SessionEnd::Administrator)).count();
    if ended == 0 && named != "all" {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "no such session: it may have ended; see GET /sessions"));
    }
    Ok(json(&json!({ "ended": ended })))
}
