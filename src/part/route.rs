//! A route: permission, scope, audit, handler.

use std::collections::HashMap;

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::MethodRouter;
use ledge_identity::access::{Permission, Role};

use crate::api_error::ApiError;

/// The subject of a route, for callers with access to certain models or feature views only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteScope {
    /// The model in its path, which must be one of the caller's.
    Model,
    /// The `{kind}/{name}` in its path, which must be one of the caller's models. The answer lists only the caller's
    /// models.
    Subject,
    /// The model that the configuration or the body names for it, which must be one of the caller's: the handler
    /// checks.
    Configured,
    /// All models: the answer lists only the caller's.
    Listed,
    /// Values of the feature views in its body, which must be among the caller's.
    Values,
    /// Neither a model nor a value of a feature view.
    Other,
    /// The whole box: a caller with limited access is refused.
    Box,
}

/// The form of error answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorForm {
    Ledge,
    Feast,
    /// `{"error": {"message": "...", ...}}`.
    OpenAi,
    /// `{"error": {"code": "...", "message": "...", ...}}`. Callers may send their API key in Azure's header.
    Azure,
    /// `{"success": false, "error": "..."}`. Callers may send their API key in the form.
    DeepStack,
    /// A status of gRPC, in trailers. The route is served only to connections with HTTP/2.
    Grpc,
}

/// The callers that a route is served to without encryption, at the addresses of `[[http.local_plain]]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LocalPlain {
    Nobody,
    /// Those on this machine, such as its containers.
    ThisHost,
    /// All in the networks that the operator names.
    Networks,
}

/// The permission that a route needs, and how it is audited.
#[derive(Debug, Clone, Copy)]
pub struct RouteRule {
    /// `GET`, `POST` or `PUT`.
    pub method: &'static str,
    /// The path, with the names of its parts in braces.
    pub path: &'static str,
    /// The permissions, of which one suffices.
    pub needs: &'static [Permission],
    pub scope: RouteScope,
    pub form: ErrorForm,
    /// Set for routes that are answered only after their durable audit record.
    pub is_audited: bool,
    /// The name in the audit record of the request itself, for routes that do not record their effects.
    pub recorded_as: Option<&'static str>,
    /// The callers that it is also served to at the addresses of `[[http.local_plain]]`.
    pub local_plain: LocalPlain,
    /// Set for routes with handlers that get the caller itself, with its credential and its access.
    pub needs_caller: bool,
}

impl RouteRule {
    /// The path with a slash at the end, which is the same route; `None` where the path ends in a wildcard, which
    /// matches it already, and for a method of gRPC.
    pub fn with_slash(&self) -> Option<String> {
        let has_one = self.form != ErrorForm::Grpc && !self.path.contains("{*");
        has_one.then(|| format!("{}/", self.path))
    }

    /// Returns `true` if the route needs no credential.
    pub fn is_public(&self) -> bool {
        self.needs.contains(&Permission::Public)
    }

    /// Returns `true` if its callers are authenticated, and web pages of other sites are refused.
    pub fn is_guarded(&self) -> bool {
        !self.is_public() || self.needs_caller
    }

    /// The roles that may use it.
    pub fn roles(&self) -> impl Iterator<Item = Role> {
        let suffices = |role: &Role| self.needs.iter().any(|need| role.permissions().contains(need));
        Role::ALL.into_iter().filter(suffices)
    }

    /// The first mistake in this rule: a route without a permission, or a change of the box that is not audited or has
    /// no scope. A `GET` that takes data out of the box is audited, too, and one that only lists need not be.
    pub fn mistake(&self) -> Option<&'static str> {
        let changes = [Permission::Operate, Permission::Administer];
        let may_change = self.needs.iter().any(|need| changes.contains(need));
        let is_change = may_change && self.method != "GET";
        if !self.roles().any(|role| role == Role::Admin) {
            Some("is not allowed for the role admin")
        } else if is_change && !self.is_audited {
            Some("changes the box and is not audited")
        } else if self.is_audited && !may_change {
            Some("is audited and does not change the box")
        } else if may_change && self.scope == RouteScope::Other {
            Some("changes the box and has no scope")
        } else if self.path.contains("{model}") != (self.scope == RouteScope::Model) {
            Some("must have the scope Model exactly if its path has {model}")
        } else {
            None
        }
    }
}

/// A row of a table of routes: the rule and the handler, with a state of type `S`.
#[derive(Debug)]
pub struct Route<S> {
    pub rule: RouteRule,
    handler: fn() -> MethodRouter<S>,
}

impl<S> Route<S> {
    const fn new(
        method: &'static str,
        path: &'static str,
        needs: &'static [Permission],
        handler: fn() -> MethodRouter<S>,
    ) -> Self {
        let (scope, form) = (RouteScope::Other, ErrorForm::Ledge);
        let (is_audited, recorded_as, local_plain, needs_caller) = (false, None, LocalPlain::Nobody, false);
        let rule = RouteRule { method, path, needs, scope, form, is_audited, recorded_as, local_plain, needs_caller };
        Self { rule, handler }
    }

    pub const fn get(path: &'static str, needs: &'static [Permission], handler: fn() -> MethodRouter<S>) -> Self {
        Self::new("GET", path, needs, handler)
    }

    pub const fn put(path: &'static str, needs: &'static [Permission], handler: fn() -> MethodRouter<S>) -> Self {
        Self::new("PUT", path, needs, handler)
    }

    pub const fn post(path: &'static str, needs: &'static [Permission], handler: fn() -> MethodRouter<S>) -> Self {
        Self::new("POST", path, needs, handler)
    }

    /// Sets the scope; the default is [`RouteScope::Other`].
    #[must_use]
    pub const fn scope(mut self, scope: RouteScope) -> Self {
        self.rule.scope = scope;
        self
    }

    /// Answers only after the durable audit record: for routes that change this box, or take data out of it.
    #[must_use]
    pub const fn audited(mut self) -> Self {
        self.rule.is_audited = true;
        self
    }

    /// The same, and records the request itself as a request for `what`, because its effects are not recorded.
    #[must_use]
    pub const fn recorded_as(mut self, what: &'static str) -> Self {
        self.rule.recorded_as = Some(what);
        self.audited()
    }

    /// Gives errors the form that OpenAI's clients read.
    #[must_use]
    pub const fn openai_errors(mut self) -> Self {
        self.rule.form = ErrorForm::OpenAi;
        self
    }

    /// Gives errors the form that Azure's clients read.
    #[must_use]
    pub const fn azure_errors(mut self) -> Self {
        self.rule.form = ErrorForm::Azure;
        self
    }

    /// Gives errors the form that DeepStack's clients read, and lets callers send their key in the form.
    #[must_use]
    pub const fn deepstack(mut self) -> Self {
        self.rule.form = ErrorForm::DeepStack;
        self
    }

    /// Serves it at the addresses of `[[http.local_plain]]`, too.
    #[must_use]
    pub const fn local_plain(mut self) -> Self {
        self.rule.local_plain = LocalPlain::Networks;
        self
    }

    /// The same for callers on this machine alone, such as its containers.
    #[must_use]
    pub const fn local_plain_on_this_host(mut self) -> Self {
        self.rule.local_plain = LocalPlain::ThisHost;
        self
    }

    /// Gives the handler the caller itself, as the extension `Caller`: to report its identity, or to check its access
    /// again during a long answer.
    #[must_use]
    pub const fn caller(mut self) -> Self {
        self.rule.needs_caller = true;
        self
    }

    /// Serves it to connections with HTTP/2, as a method of gRPC.
    #[must_use]
    pub const fn grpc(mut self) -> Self {
        self.rule.form = ErrorForm::Grpc;
        self
    }

    /// Gives errors the form that Feast's clients read.
    #[must_use]
    pub const fn feast_errors(mut self) -> Self {
        self.rule.form = ErrorForm::Feast;
        self
    }
}

/// A route with its state, ready to serve.
#[derive(Debug, Clone)]
pub struct BoundRoute {
    pub rule: RouteRule,
    pub handler: MethodRouter,
}

/// Binds all routes of a table to their state.
pub fn bind<S: Clone + Send + Sync + 'static>(routes: &[Route<S>], state: &S) -> Vec<BoundRoute> {
    let bound =
        |route: &Route<S>| BoundRoute { rule: route.rule, handler: (route.handler)().with_state(state.clone()) };
    routes.iter().map(bound).collect()
}

/// The named parts of a path, percent-decoded; a path that is not UTF-8 is answered with 400.
#[derive(Debug)]
pub struct PathParts(pub HashMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for PathParts {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(parts)| Self(parts)).map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, error.body_text()))
    }
}

/// The permissions of routes, by the names in the tables of routes.
pub mod needs {
    use ledge_identity::access::Permission;

    pub const PUBLIC: &[Permission] = &[Permission::Public];
    pub const VIEW: &[Permission] = &[Permission::View];
    pub const INFER: &[Permission] = &[Permission::Infer];
    /// For metadata of models: clients read it before they send inferences.
    pub const VIEW_OR_INFER: &[Permission] = &[Permission::View, Permission::Infer];
    /// For declarations of feature views: clients read them before they push.
    pub const VIEW_OR_PUSH: &[Permission] = &[Permission::View, Permission::WriteFeatures];
    pub const READ_FEATURES: &[Permission] = &[Permission::ReadFeatures];
    pub const WRITE_FEATURES: &[Permission] = &[Permission::WriteFeatures];
    pub const OPERATE: &[Permission] = &[Permission::Operate];
    pub const ADMINISTER: &[Permission] = &[Permission::Administer];
    pub const AUDIT: &[Permission] = &[Permission::Audit];
    pub const VIEW_PICTURES: &[Permission] = &[Permission::ViewPictures];
}
