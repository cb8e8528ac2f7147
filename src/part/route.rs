//! A route: permission, scope, audit, handler.

use std::collections::HashMap;

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::MethodRouter;
use ledge_identity::access::{Permission, Role};

use crate::failure::Failure;

/// The subject of a route, for callers that are for a part of the box only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The model that its path names, which must be one of the caller's.
    Model,
    /// The `{kind}/{name}` of its path: one of the caller's models. Such a caller is shown only its own.
    Subject,
    /// All models: such a caller is shown only its own.
    Listed,
    /// Values of feature views that its body names, which must be among the caller's.
    Values,
    /// No model, and no value of a feature view.
    Other,
    /// The whole box: such a caller is refused.
    Box,
}

/// The form of error answers, by the clients that read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorForm {
    Ledge,
    Feast,
}

/// What a route demands of its caller, and how it is audited.
#[derive(Debug, Clone, Copy)]
pub struct RouteRule {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// The path, with the names of its parts in braces.
    pub path: &'static str,
    /// The permissions of which one is enough.
    pub needs: &'static [Permission],
    pub scope: Scope,
    pub form: ErrorForm,
    /// Answered only after its durable audit record.
    pub is_audited: bool,
    /// The audit record of the request itself, where its effects leave none.
    pub recorded_as: Option<&'static str>,
}

impl RouteRule {
    /// Its path with a slash at the end, which leads to it as well; `None` where the path ends in a wildcard, which has it.
    pub fn with_slash(&self) -> Option<String> {
        (!self.path.contains("{*")).then(|| format!("{}/", self.path))
    }

    /// Needs no credential.
    pub fn is_public(&self) -> bool {
        self.needs.contains(&Permission::Public)
    }

    /// The roles that may use it.
    pub fn roles(&self) -> impl Iterator<Item = Role> {
        let suffices = |role: &Role| self.needs.iter().any(|need| role.permissions().contains(need));
        Role::ALL.into_iter().filter(suffices)
    }

    /// The first reason why this rule cannot be right: a route that demands nothing, or a change of the box that is not
    /// audited or not limited to callers that are for all of it.
    pub fn mistake(&self) -> Option<&'static str> {
        let changes = [Permission::Operate, Permission::Administer];
        let is_change = self.needs.iter().any(|need| changes.contains(need));
        if !self.roles().any(|role| role == Role::Admin) {
            Some("is not for the role admin")
        } else if self.is_audited != is_change {
            Some("must be audited if it changes the box, and only then")
        } else if is_change && self.scope == Scope::Other {
            Some("changes the box and has no scope")
        } else if self.path.contains("{model}") != (self.scope == Scope::Model) {
            Some("has the scope of one model if its path names one, and only then")
        } else {
            None
        }
    }
}

/// A row of a table of routes: the rule, and the handler, whose state is an `S`.
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
        let (scope, form) = (Scope::Other, ErrorForm::Ledge);
        Self { rule: RouteRule { method, path, needs, scope, form, is_audited: false, recorded_as: None }, handler }
    }

    pub const fn get(path: &'static str, needs: &'static [Permission], handler: fn() -> MethodRouter<S>) -> Self {
        Self::new("GET", path, needs, handler)
    }

    pub const fn post(path: &'static str, needs: &'static [Permission], handler: fn() -> MethodRouter<S>) -> Self {
        Self::new("POST", path, needs, handler)
    }

    /// The same with a scope; without one it is [`Scope::Other`].
    #[must_use]
    pub const fn about(mut self, scope: Scope) -> Self {
        self.rule.scope = scope;
        self
    }

    /// Changes this box, or takes data out of it: answered only after its durable audit record.
    #[must_use]
    pub const fn audited(mut self) -> Self {
        self.rule.is_audited = true;
        self
    }

    /// Audited, and recorded itself as a request for `what`, because nothing else of it would be.
    #[must_use]
    pub const fn recorded_as(mut self, what: &'static str) -> Self {
        self.rule.recorded_as = Some(what);
        self.audited()
    }

    /// Errors have the form that Feast's clients read.
    #[must_use]
    pub const fn of_feast(mut self) -> Self {
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

/// Gives all routes of a table their state.
pub fn bind<S: Clone + Send + Sync + 'static>(routes: &[Route<S>], state: &S) -> Vec<BoundRoute> {
    let bound =
        |route: &Route<S>| BoundRoute { rule: route.rule, handler: (route.handler)().with_state(state.clone()) };
    routes.iter().map(bound).collect()
}

/// The named parts of a path, percent-decoded; a path that is not UTF-8 gets the 400 of any other mistake.
#[derive(Debug)]
pub struct PathParts(pub HashMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for PathParts {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(parts)| Self(parts)).map_err(|error| Failure::new(StatusCode::BAD_REQUEST, error.body_text()))
    }
}

/// Permissions that routes demand, by the names that tables have for them.
pub mod needs {
    use ledge_identity::access::Permission;

    pub const PUBLIC: &[Permission] = &[Permission::Public];
    pub const VIEW: &[Permission] = &[Permission::View];
    pub const INFER: &[Permission] = &[Permission::Infer];
    /// Clients look at a model before they ask it.
    pub const MODEL: &[Permission] = &[Permission::View, Permission::Infer];
    /// Clients look at a feature view before they push to it.
    pub const DECLARED: &[Permission] = &[Permission::View, Permission::WriteFeatures];
    pub const READ_FEATURES: &[Permission] = &[Permission::ReadFeatures];
    pub const WRITE_FEATURES: &[Permission] = &[Permission::WriteFeatures];
    pub const OPERATE: &[Permission] = &[Permission::Operate];
    pub const ADMINISTER: &[Permission] = &[Permission::Administer];
    pub const AUDIT: &[Permission] = &[Permission::Audit];
}
