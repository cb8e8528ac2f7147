//! Authentication and authorization: the caller of a request and its permission. It runs before every route except the
//! public ones.

use std::time::Instant;

use axum::RequestExt;
use axum::extract::{RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::uri::Scheme;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_identity::access::{CallerAccess, Role};
use ledge_identity::authentication::{
    Caller, CallerProof, CredentialError, MissingAccess, Peer, RequestLimitExceeded, RequestPermit,
};
use ledge_identity::sign_in::SessionHalves;
use ledge_part::api_error::ApiError;
use ledge_part::route::{ErrorForm, RouteRule, RouteScope};
use ledge_part::{access, body, counted_body};
use ledge_protocol::deepstack::api_key_at_start;

use super::browser::{self, CrossSiteRequest};
use super::denied::DeniedRequest;
use super::reply::{
    AnalysisErrorResponse, FeastErrorResponse, OpenAiErrorResponse, VisionErrorResponse, with_challenge,
};
use super::{App, call_headers};

/// The header for an API key of clients without bearer tokens.
const API_KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");

/// The header in which Azure's clients send their key.
const SUBSCRIPTION_KEY_HEADER: HeaderName = HeaderName::from_static("ocp-apim-subscription-key");

/// The header with one half of a session, `ID.TOKEN`. The other half is in a cookie.
const SESSION_HEADER: HeaderName = HeaderName::from_static("x-ledge-session");

/// The header of requests that the page sends without its person.
const BACKGROUND_HEADER: HeaderName = HeaderName::from_static("x-ledge-background");

/// The challenge of a 401 for a request without a credential (RFC 9110, 11.6.1).
const BEARER_CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"ledge\"");

/// The challenge of a 401 for an invalid key (RFC 6750, 3).
const INVALID_TOKEN_CHALLENGE: HeaderValue =
    HeaderValue::from_static("Bearer realm=\"ledge\", error=\"invalid_token\"");

/// The part of a form that is read of a caller without permission, in bytes: its key may be there.
const FORM_START_BYTES: usize = 64 << 10;

/// The state of the middleware for one route.
#[derive(Debug, Clone)]
pub struct RouteGuard {
    pub app: App,
    pub rule: RouteRule,
}

/// Passes a request on to its handler, with the principal of the caller.
pub async fn guard(State(RouteGuard { app, rule }): State<RouteGuard>, mut request: Request, next: Next) -> Response {
    match admit(&app, &rule, &mut request).await {
        Ok(permit) => {
            let response = next.run(request).await;
            // The request counts as in progress until the caller has the answer.
            if permit.is_counted() { counted_body::keep_until_sent(response, permit) } else { response }
        }
        Err(denied) => {
            // With `Expect: 100-continue`, reading the body would send the 100, so reply first.
            // A stream of HTTP/2 is reset behind its answer.
            let is_unread = request.headers().contains_key(header::EXPECT) || rule.form == ErrorForm::Grpc;
            if is_unread {
                drop(request);
            } else if denied.is_known {
                body::discard(request.into_body(), app.context().limits()).await;
            } else {
                body::discard_small(request.into_body()).await;
            }

            let DeniedRequest { failure, challenge, .. } = denied;
            let response = match rule.form {
                ErrorForm::Ledge | ErrorForm::Grpc => failure.into_response(),
                ErrorForm::Feast => FeastErrorResponse::from(failure).into_response(),
                ErrorForm::OpenAi => OpenAiErrorResponse::from(failure).into_response(),
                ErrorForm::Azure => AnalysisErrorResponse::from(failure).into_response(),
                ErrorForm::DeepStack => VisionErrorResponse::from(failure).into_response(),
            };
            with_challenge(response, challenge)
        }
    }
}

async fn admit(app: &App, rule: &RouteRule, request: &mut Request) -> Result<RequestPermit, DeniedRequest> {
    let mut caller = authenticate(app, request)?;
    let mut obstacle = obstacle(app, rule, &caller, request).await?;
    // A key in the form is asked for where it decides. The handler finds it where the caller may pass without one.
    if rule.form == ErrorForm::DeepStack
        && obstacle.is_some()
        && caller.proof != CallerProof::Key
        && let Some(key) = form_key(request).await
    {
        let peer = request.extensions().get::<Peer>().ok_or_else(without_peer)?;
        caller = authenticate_by(app, peer, Some(key.as_bytes()))?;
        obstacle = self::obstacle(app, rule, &caller, request).await?;
    }
    let permit = caller.enter(Instant::now()).map_err(|limited| at_limit(&limited))?;
    match obstacle {
        Some(DenialReason::Lacking(lacking)) => return Err(denied(app, rule, &caller, lacking)),
        Some(DenialReason::Foreign(foreign)) => return Err(from_web_page(app, &caller, &foreign)),
        None => {}
    }
    let extensions = request.extensions_mut();
    if rule.needs_caller {
        extensions.insert(caller.clone());
    }
    let Caller { principal, access, .. } = caller;
    if rule.scope == RouteScope::Configured || matches!(rule.form, ErrorForm::DeepStack | ErrorForm::Grpc) {
        extensions.insert(*rule);
    }
    if matches!(
        rule.scope,
        RouteScope::Configured | RouteScope::Listed | RouteScope::Subject | RouteScope::Values | RouteScope::Model
    ) {
        extensions.insert(access);
    }
    extensions.insert(principal);
    Ok(permit)
}

/// The reason to refuse a caller that is authenticated.
enum DenialReason {
    Lacking(MissingAccess),
    Foreign(CrossSiteRequest),
}

async fn obstacle(
    app: &App,
    rule: &RouteRule,
    caller: &Caller,
    request: &mut Request,
) -> Result<Option<DenialReason>, DeniedRequest> {
    let lacking = match caller.lacks(rule.needs, None) {
        None if caller.access.is_scoped() => out_of_scope(rule, caller, request).await?,
        lacking => lacking,
    };
    let foreign = || foreign_request(app, caller, request).map(DenialReason::Foreign);
    Ok(lacking.map(DenialReason::Lacking).or_else(foreign))
}

fn at_limit(limited: &RequestLimitExceeded) -> DeniedRequest {
    let failure = ApiError::later(StatusCode::TOO_MANY_REQUESTS, limited.to_string(), limited.retry_after());
    DeniedRequest { failure, challenge: None, is_known: true }
}

/// The API key in the start of a form. The request keeps its whole body.
async fn form_key(request: &mut Request) -> Option<String> {
    let (start, body) = body::peek(std::mem::take(request.body_mut()), FORM_START_BYTES).await;
    *request.body_mut() = body;
    api_key_at_start(call_headers::content_type(request.headers()), start)
}

/// The caller of a form.
pub(super) struct FormCaller {
    pub principal: Principal,
    access: CallerAccess,
    /// Counts the call as running for the key in the form.
    pub permit: Option<RequestPermit>,
}

/// Authenticates the caller of a form by the key in the form, if it has one, after the guard has admitted the request.
/// A key in a form decides as one in a header does: the caller has only its access, and an invalid one is refused.
pub(super) fn admit_by_form(app: &App, parts: &Parts, key: Option<&str>) -> Result<FormCaller, DeniedRequest> {
    let admitted = || {
        let (principal, access) = (parts.extensions.get::<Principal>()?, parts.extensions.get::<CallerAccess>()?);
        Some(FormCaller { principal: principal.clone(), access: access.clone(), permit: None })
    };
    let (Some(admitted), Some(rule)) = (admitted(), parts.extensions.get::<RouteRule>()) else {
        return Err(without_peer());
    };
    let Some(key) = key else { return Ok(admitted) };
    if presented_key(&parts.headers)?.is_some_and(|presented| presented != key.as_bytes()) {
        let message = "the form and the headers contain two different keys: send one of them";
        return Err(two_keys(message));
    }

    let peer = parts.extensions.get::<Peer>().ok_or_else(without_peer)?;
    let caller = authenticate_by(app, peer, Some(key.as_bytes()))?;
    if admitted.principal == caller.principal {
        return Ok(admitted);
    }
    if let Some(lacking) = caller.lacks(rule.needs, None) {
        return Err(denied(app, rule, &caller, lacking));
    }
    let permit = caller.enter(Instant::now()).map_err(|limited| at_limit(&limited))?;
    Ok(FormCaller { principal: caller.principal, access: caller.access, permit: Some(permit) })
}

impl FormCaller {
    /// Refuses a model that is not one of the caller's.
    pub(super) fn check_model(&self, app: &App, parts: &Parts, model: &ModelName) -> Result<(), DeniedRequest> {
        check_model(app, parts, &self.principal, &self.access, model)
    }

    pub(super) fn has_model(&self, model: &ModelName) -> bool {
        self.access.has_model(model)
    }
}

/// Refuses a model that is not one of the caller's, for routes of [`RouteScope::Configured`].
pub(super) fn check_model(
    app: &App,
    parts: &Parts,
    principal: &Principal,
    access: &CallerAccess,
    model: &ModelName,
) -> Result<(), DeniedRequest> {
    match parts.extensions.get::<RouteRule>() {
        _ if access.has_model(model) => Ok(()),
        Some(rule) => Err(outside_scope(app, rule, principal, access)),
        None => Err(without_peer()),
    }
}

/// Detects the requests of foreign web pages that would have the access of their browser: that of this machine, or that
/// of a certificate, which a browser presents for every page. A key does not have this problem: a page must know it to
/// send it.
fn foreign_request(app: &App, caller: &Caller, request: &Request) -> Option<CrossSiteRequest> {
    // No page reaches a Unix socket.
    if !matches!(request.extensions().get(), Some(Peer::Address { .. })) {
        return None;
    }
    let scheme = request.extensions().get::<Scheme>().unwrap_or(&Scheme::HTTP);
    let foreign = || browser::foreign_request(scheme, request.uri(), request.headers(), &app.config().allowed_hosts);
    match caller.proof {
        CallerProof::Key | CallerProof::User => None,
        // No other host has the name that the handshake was for.
        CallerProof::Certificate => foreign().filter(|foreign| matches!(foreign, CrossSiteRequest::Page { .. })),
        CallerProof::None | CallerProof::UnlistedCertificate(_) | CallerProof::Session => foreign(),
    }
}

fn from_web_page(app: &App, caller: &Caller, foreign: &CrossSiteRequest) -> DeniedRequest {
    app.serving().audit().record_denied(&caller.principal, foreign.as_str());
    let message = format!("{foreign}; or send an API key as `Authorization: Bearer <key>`");
    let failure = ApiError::new(StatusCode::UNAUTHORIZED, message);
    DeniedRequest { failure, challenge: Some(BEARER_CHALLENGE), is_known: false }
}

fn authenticate(app: &App, request: &Request) -> Result<Caller, DeniedRequest> {
    let headers = request.headers();
    let key = presented_key(headers)?;
    let session = once(headers, &SESSION_HEADER)?;
    // Every connection has a peer; without one there is nothing to authenticate.
    let Some(peer) = request.extensions().get::<Peer>() else { return Err(without_peer()) };
    let Some(session) = session else { return authenticate_by(app, peer, key) };
    if key.is_some() {
        return Err(two_keys("the request has an API key and the session of a sign-in: send one of them"));
    }
    // A cookie without the header is no credential: it goes to every port of a host.
    let cookies = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes);
    let presented = SessionHalves::read(session, cookies);
    let is_background = headers.contains_key(BACKGROUND_HEADER);
    let found = app.authenticator().session_caller(peer, presented.as_ref(), is_background);
    found.map_err(|refused| unauthenticated(&refused))
}

fn authenticate_by(app: &App, peer: &Peer, key: Option<&[u8]>) -> Result<Caller, DeniedRequest> {
    app.authenticator().caller(peer, key).map_err(|refused| unauthenticated(&refused))
}

fn unauthenticated(refused: &CredentialError) -> DeniedRequest {
    let failure = access::refused_credential(refused);
    let challenge = (failure.status == StatusCode::UNAUTHORIZED).then_some(INVALID_TOKEN_CHALLENGE);
    DeniedRequest { failure, challenge, is_known: false }
}

/// The refusal of a request without a peer, which no listener makes.
fn without_peer() -> DeniedRequest {
    let failure = ApiError::new(
        StatusCode::UNAUTHORIZED,
        "authentication required: send an API key as `Authorization: Bearer <key>`",
    );
    DeniedRequest { failure, challenge: Some(BEARER_CHALLENGE), is_known: false }
}

/// The refusal of a request with more than one key.
fn two_keys(message: &str) -> DeniedRequest {
    DeniedRequest { failure: ApiError::new(StatusCode::BAD_REQUEST, message), challenge: None, is_known: false }
}

/// The value of a header that may be there once.
fn once<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h [u8]>, DeniedRequest> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(two_keys(&format!("the request has the header {name} more than once: send it once")));
    }
    Ok(first.map(HeaderValue::as_bytes))
}

/// The key of a request that sent something else: it is malformed.
const MALFORMED_KEY: &[u8] = b"";

/// The API key of a request. `Authorization` with another scheme than `Bearer`, and without a key in the other header,
/// counts as a malformed key: a caller that presents something never gets the access of callers without a credential.
pub(super) fn presented_key(headers: &HeaderMap) -> Result<Option<&[u8]>, DeniedRequest> {
    let authorization = once(headers, &header::AUTHORIZATION)?;
    let bearer = authorization.and_then(bearer);
    let plain = once(headers, &API_KEY_HEADER)?;
    let subscription = once(headers, &SUBSCRIPTION_KEY_HEADER)?;
    let mut keys = bearer.into_iter().chain([plain, subscription].into_iter().flatten().map(<[u8]>::trim_ascii));
    let key = keys.next();
    if keys.any(|other| Some(other) != key) {
        return Err(two_keys("the headers contain two different keys: send one of them"));
    }
    Ok(key.or(authorization.and(Some(MALFORMED_KEY))))
}

/// The token of `Bearer TOKEN`. The scheme may be in upper or lower case (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(6)?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && token.first().is_none_or(|byte| *byte == b' ');
    is_bearer.then(|| token.trim_ascii())
}

/// The permission that a caller with limited access lacks for this rule.
async fn out_of_scope(
    rule: &RouteRule,
    caller: &Caller,
    request: &mut Request,
) -> Result<Option<MissingAccess>, DeniedRequest> {
    let part = match rule.scope {
        // The handlers check these: the names are in the body or in the configuration.
        RouteScope::Configured | RouteScope::Listed | RouteScope::Values | RouteScope::Other => return Ok(None),
        RouteScope::Box => return Ok(Some(MissingAccess::Model)),
        RouteScope::Model => "model",
        RouteScope::Subject => "name",
    };
    let parts = request.extract_parts::<RawPathParams>().await.map_err(|error| DeniedRequest {
        failure: ApiError::new(StatusCode::BAD_REQUEST, error.to_string()),
        challenge: None,
        is_known: true,
    })?;
    let value = |wanted: &str| parts.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
    if caller.access.models().is_none() {
        return Ok(None);
    }
    let is_model = rule.scope == RouteScope::Model || value("kind") == Some("models");
    // A text that is not a valid model name is not a model of the caller.
    let model = value(part).filter(|_| is_model).and_then(|name| name.parse::<ModelName>().ok());
    Ok(match model {
        Some(model) => caller.lacks(rule.needs, Some(&model)),
        None => Some(MissingAccess::Model),
    })
}

fn denied(app: &App, rule: &RouteRule, caller: &Caller, lacking: MissingAccess) -> DeniedRequest {
    let (principal, method, path) = (&caller.principal, rule.method, rule.path);
    if lacking == MissingAccess::Model {
        return outside_scope(app, rule, principal, &caller.access);
    }
    let need = rule.needs.first().map_or("public", |need| need.as_str());
    app.serving().audit().record_denied(principal, need);
    let roles = one_of(rule.roles().map(|role| role.as_str().to_owned()).collect());
    let needs = format!("{method} {path} needs the role {roles}");
    let least = rule.roles().min_by_key(|role| role.permissions().len()).unwrap_or(Role::Admin);
    let create = format!("`ledge keys create NAME --role {least}` on the box creates one");
    let key = match rule.form {
        ErrorForm::DeepStack => {
            "an API key as the field api_key, before the field image, or as `Authorization: Bearer <key>`"
        }
        _ => "an API key as `Authorization: Bearer <key>`",
    };
    let lacks = format!("{needs}, and {principal} does not have it");
    let (status, message) = match &caller.proof {
        CallerProof::None => (StatusCode::UNAUTHORIZED, format!("{needs}: send {key} with this role; {create}")),
        CallerProof::Key => (StatusCode::FORBIDDEN, format!("{lacks}: use another key; {create}")),
        CallerProof::Session => {
            let login = format!("`sudo ledge login --role {least}` on the box shows a code for it");
            (StatusCode::FORBIDDEN, format!("{lacks}: {login}"))
        }
        CallerProof::User => (StatusCode::FORBIDDEN, format!("{lacks}: add the role in access.users, or send {key}")),
        CallerProof::Certificate => {
            (StatusCode::FORBIDDEN, format!("{lacks}: add the role in access.certificates, or send {key}"))
        }
        CallerProof::UnlistedCertificate(certificate) => {
            let names = certificate.names.join(", ");
            (
                StatusCode::FORBIDDEN,
                format!(
                    "{needs}: add the certificate to access.certificates by one of its names ({names}), or send {key}"
                ),
            )
        }
    };
    let challenge = (status == StatusCode::UNAUTHORIZED).then_some(BEARER_CHALLENGE);
    DeniedRequest { failure: ApiError::new(status, message), challenge, is_known: caller.proof != CallerProof::None }
}

/// The refusal of a caller with access to other models only.
fn outside_scope(app: &App, rule: &RouteRule, principal: &Principal, access: &CallerAccess) -> DeniedRequest {
    let failure = access::outside_scope(app.serving().audit(), rule, principal, access);
    DeniedRequest { failure, challenge: None, is_known: true }
}

/// `a`, `a or b`, `a, b or c`.
fn one_of(mut words: Vec<String>) -> String {
    match words.pop() {
        Some(last) if words.is_empty() => last,
        Some(last) => format!("{} or {last}", words.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key, or "nothing"; `None` when the request is refused.
    fn read(values: &[(&'static str, &'static str)]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let key = presented_key(&headers).ok()?;
        Some(key.map_or_else(|| "nothing".to_owned(), |key| String::from_utf8_lossy(key).into_owned()))
    }

    #[test]
    fn a_key_is_a_bearer_token_or_a_header_of_its_own_but_one_key() {
        let reads = |values: &[(&'static str, &'static str)], expected: &str| {
            assert_eq!(read(values).as_deref(), Some(expected), "{values:?}");
        };
        reads(&[], "nothing");
        reads(&[("authorization", "Bearer k")], "k");
        reads(&[("authorization", "bEARER   k ")], "k");
        reads(&[("authorization", "Bearer")], "");
        reads(&[("x-api-key", "k")], "k");
        reads(&[("x-api-key", "k"), ("authorization", "Bearer k")], "k");
        for other in ["Basic dGlsbDp0aWxs", "Bearerk", "k", ""] {
            reads(&[("authorization", other)], "");
            reads(&[("authorization", other), ("x-api-key", "k")], "k");
        }
        reads(&[("ocp-apim-subscription-key", "k"), ("x-api-key", "k")], "k");
        assert_eq!(read(&[("x-api-key", "k"), ("ocp-apim-subscription-key", "l")]), None);
        assert_eq!(read(&[("x-api-key", "k"), ("authorization", "Bearer l")]), None);
        assert_eq!(read(&[("x-api-key", "k"), ("x-api-key", "k")]), None);
        assert_eq!(read(&[("authorization", "Bearer k"), ("authorization", "Bearer k")]), None);
    }

    #[test]
    fn roles_are_listed_in_words() {
        let words = |list: &[&str]| one_of(list.iter().map(ToString::to_string).collect());
        assert_eq!([words(&["a"]), words(&["a", "b"]), words(&["a", "b", "c"])], ["a", "a or b", "a, b or c"]);
    }
}
