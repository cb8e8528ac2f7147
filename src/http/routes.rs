//! Every route, and what a caller needs for it. The router is made of this table, so a route that asks for nothing does not
//! exist; `openapi.json` describes the same ones, and tests compare the two.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use ledge_identity::access::{Permission, Role};

use super::administration::Audited;
use super::guard::{Guard, guard};
use super::{App, administration, audit, features, features_admin, health, infer, metrics, models, openapi, updates};

/// What a route is about, for callers that are for a part of the box alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The model that its path names, which must be one of the caller's.
    Model,
    /// What its path names as `{kind}/{name}`: one of the caller's models. Such a caller is shown its own alone.
    Subject,
    /// All models: such a caller is shown its own alone.
    Listed,
    /// Values of feature views that its body names, which must be among the caller's.
    Values,
    /// No model, and no value of a feature view.
    Other,
    /// The whole box: such a caller is refused.
    Box,
}

/// Who understands the error answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Ledge,
    Feast,
}

/// A route.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// The path, with the names of its parts in braces.
    pub path: &'static str,
    /// What it asks for. One of them is enough.
    pub needs: &'static [Permission],
    pub scope: Scope,
    pub(super) form: Form,
    is_audited: bool,
    recorded_as: Option<&'static str>,
    handler: fn() -> MethodRouter<App>,
}

impl Route {
    const fn new(
        method: &'static str,
        path: &'static str,
        needs: &'static [Permission],
        handler: fn() -> MethodRouter<App>,
    ) -> Self {
        Self {
            method,
            path,
            needs,
            scope: Scope::Other,
            form: Form::Ledge,
            is_audited: false,
            recorded_as: None,
            handler,
        }
    }

    const fn get(path: &'static str, needs: &'static [Permission], handler: fn() -> MethodRouter<App>) -> Self {
        Self::new("GET", path, needs, handler)
    }

    const fn post(path: &'static str, needs: &'static [Permission], handler: fn() -> MethodRouter<App>) -> Self {
        Self::new("POST", path, needs, handler)
    }

    const fn about(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// Changes this box, or takes data out of it: answered once the audit log has it for good.
    const fn audited(self) -> Self {
        Self { is_audited: true, ..self }
    }

    /// The same, where nothing else would be recorded of it but that somebody asked for `what`.
    const fn recorded_as(self, what: &'static str) -> Self {
        Self { recorded_as: Some(what), ..self.audited() }
    }

    const fn of_feast(self) -> Self {
        Self { form: Form::Feast, ..self }
    }

    /// Its path with a slash at the end, which leads to it as well; `None` where the path ends in a wildcard, which has it.
    pub fn with_slash(&self) -> Option<String> {
        (!self.path.contains("{*")).then(|| format!("{}/", self.path))
    }

    /// Whether nobody needs a credential for it.
    pub fn is_public(&self) -> bool {
        self.needs.contains(&Permission::Public)
    }

    /// The roles that may use it.
    pub fn roles(&self) -> impl Iterator<Item = Role> {
        let suffices = |role: &Role| self.needs.iter().any(|need| role.permissions().contains(need));
        Role::ALL.into_iter().filter(suffices)
    }
}

const PUBLIC: &[Permission] = &[Permission::Public];
const VIEW: &[Permission] = &[Permission::View];
const INFER: &[Permission] = &[Permission::Infer];
/// Clients look at a model before they ask it.
const MODEL: &[Permission] = &[Permission::View, Permission::Infer];
/// And at a feature view before they push to it.
const DECLARED: &[Permission] = &[Permission::View, Permission::WriteFeatures];
const READ: &[Permission] = &[Permission::ReadFeatures];
const WRITE: &[Permission] = &[Permission::WriteFeatures];
const OPERATE: &[Permission] = &[Permission::Operate];
const ADMINISTER: &[Permission] = &[Permission::Administer];
const AUDIT: &[Permission] = &[Permission::Audit];

/// Every route.
pub const ROUTES: &[Route] = &[
    Route::get("/v2", MODEL, || get(health::server_metadata)),
    Route::get("/v2/health/live", PUBLIC, || get(health::live)),
    Route::get("/v2/health/ready", PUBLIC, || get(health::ready)),
    Route::get("/v2/models/stats", VIEW, || get(models::all_statistics)).about(Scope::Listed),
    Route::get("/v2/models/{model}", MODEL, || get(models::metadata)).about(Scope::Model),
    Route::get("/v2/models/{model}/ready", MODEL, || get(models::ready)).about(Scope::Model),
    Route::get("/v2/models/{model}/config", MODEL, || get(models::config)).about(Scope::Model),
    Route::get("/v2/models/{model}/stats", VIEW, || get(models::statistics)).about(Scope::Model),
    Route::post("/v2/models/{model}/infer", INFER, || post(infer::infer)).about(Scope::Model),
    Route::get("/v2/models/{model}/versions/{version}", MODEL, || get(models::metadata)).about(Scope::Model),
    Route::get("/v2/models/{model}/versions/{version}/ready", MODEL, || get(models::ready)).about(Scope::Model),
    Route::get("/v2/models/{model}/versions/{version}/config", MODEL, || get(models::config)).about(Scope::Model),
    Route::get("/v2/models/{model}/versions/{version}/stats", VIEW, || get(models::statistics)).about(Scope::Model),
    Route::post("/v2/models/{model}/versions/{version}/infer", INFER, || post(infer::infer)).about(Scope::Model),
    Route::post("/v2/repository/index", VIEW, || post(models::index)).about(Scope::Listed),
    Route::post("/v2/repository/models/{model}/load", OPERATE, || post(models::load)).about(Scope::Model).audited(),
    Route::post("/v2/repository/models/{model}/unload", OPERATE, || post(models::unload)).about(Scope::Model).audited(),
    Route::post("/get-online-features", READ, || post(features::get_online_features)).about(Scope::Values).of_feast(),
    Route::post("/push", WRITE, || post(features::push)).about(Scope::Values).of_feast(),
    Route::post("/write-to-online-store", WRITE, || post(features::write_to_online_store))
        .about(Scope::Values)
        .of_feast(),
    Route::post("/materialize", WRITE, || post(features::materialize)).of_feast(),
    Route::post("/materialize-incremental", WRITE, || post(features::materialize)).of_feast(),
    Route::get("/health", PUBLIC, || get(health::live)),
    Route::get("/feature-views", DECLARED, || get(features::views)),
    Route::get("/feature-views/{feature_view}", DECLARED, || get(features::view)),
    Route::get("/feature-services", DECLARED, || get(features::services)),
    Route::get("/feature-services/{feature_service}", DECLARED, || get(features::service)),
    Route::get("/entities", DECLARED, || get(features::entities)),
    Route::get("/features/status", VIEW, || get(features_admin::status)),
    Route::get("/features/backup", ADMINISTER, || get(features_admin::backup)).about(Scope::Box).audited(),
    Route::post("/features/restore", ADMINISTER, || post(features_admin::restore)).about(Scope::Box).audited(),
    Route::post("/features/erase", ADMINISTER, || post(features_admin::erase)).about(Scope::Box).audited(),
    Route::post("/features/snapshot", OPERATE, || post(features_admin::snapshot))
        .about(Scope::Box)
        .recorded_as("feature_snapshot"),
    Route::post("/features/compact", OPERATE, || post(features_admin::compact))
        .about(Scope::Box)
        .recorded_as("feature_compaction"),
    Route::get("/updates", VIEW, || get(updates::status)).about(Scope::Listed),
    Route::post("/updates/check", OPERATE, || post(updates::check)).about(Scope::Box).recorded_as("update_check"),
    Route::post("/updates/trust/reset", ADMINISTER, || post(updates::reset_trust)).about(Scope::Box).audited(),
    Route::post("/updates/{kind}/{name}/{order}", OPERATE, || post(updates::order)).about(Scope::Subject).audited(),
    Route::get("/audit/status", VIEW, || get(audit::status)),
    Route::get("/audit/logs/{generation}/checkpoint", AUDIT, || get(audit::checkpoint)).about(Scope::Box),
    Route::get("/audit/logs/{generation}/tile/{*path}", AUDIT, || get(audit::tile)).about(Scope::Box),
    Route::get("/metrics", VIEW, || get(metrics::metrics)).about(Scope::Listed),
    Route::get("/openapi.json", PUBLIC, || get(openapi::document)),
];

/// The router of the table.
pub(super) fn router(app: &App) -> Router<App> {
    let add = |router: Router<App>, route: &'static Route| {
        let mut handler = (route.handler)();
        if route.is_audited {
            let audited = Audited { app: app.clone(), recorded_as: route.recorded_as };
            handler = handler.route_layer(from_fn_with_state(audited, administration::audited));
        }
        // Outermost: who is refused is not told even that the audit log is in trouble.
        if !route.is_public() {
            handler = handler.route_layer(from_fn_with_state(Guard { app: app.clone(), route }, guard));
        }
        // Some clients end each path with a slash. It is the same route, not a redirect: a POST would lose its body.
        let router = match route.with_slash() {
            Some(path) => router.route(&path, handler.clone()),
            None => router,
        };
        router.route(route.path, handler)
    };
    ROUTES.iter().fold(Router::new(), add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_asks_for_something_and_what_changes_the_box_is_audited() {
        for route in ROUTES {
            assert!(!route.needs.is_empty(), "{route:?}");
            let changes = [Permission::Operate, Permission::Administer];
            let is_change = route.needs.iter().any(|need| changes.contains(need));
            assert_eq!(route.is_audited, is_change, "{}", route.path);
            assert!(!is_change || route.scope != Scope::Other, "{}", route.path);
            assert_eq!(route.path.contains("{model}"), route.scope == Scope::Model, "{}", route.path);
            assert!(route.roles().any(|role| role == Role::Admin), "{}", route.path);
        }
    }

    #[test]
    fn without_a_credential_there_is_a_sign_of_life_and_the_description() {
        let public: Vec<_> = ROUTES.iter().filter(|route| route.is_public()).map(|route| route.path).collect();
        assert_eq!(public, ["/v2/health/live", "/v2/health/ready", "/health", "/openapi.json"]);
    }
}
