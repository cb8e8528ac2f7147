//! Every route of the API, and the router of all routes, those of parts included.
//!
//! The router is made of tables, so a route that asks for nothing does not exist. `openapi.json` describes the same routes,
//! and tests compare the two.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use ledge_part::route::needs::{DECLARED, INFER, MODEL, OPERATE, PUBLIC, READ_FEATURES, VIEW, WRITE_FEATURES};
use ledge_part::route::{BoundRoute, Route, Scope, bind};

use super::administration::{self, Audited};
use super::guard::{Guard, guard};
use super::{App, features, health, infer, metrics, models, openapi};

/// Every route of the API.
pub const ROUTES: &[Route<App>] = &[
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
    Route::post("/get-online-features", READ_FEATURES, || post(features::get_online_features))
        .about(Scope::Values)
        .of_feast(),
    Route::post("/push", WRITE_FEATURES, || post(features::push)).about(Scope::Values).of_feast(),
    Route::post("/write-to-online-store", WRITE_FEATURES, || post(features::write_to_online_store))
        .about(Scope::Values)
        .of_feast(),
    Route::post("/materialize", WRITE_FEATURES, || post(features::materialize)).of_feast(),
    Route::post("/materialize-incremental", WRITE_FEATURES, || post(features::materialize)).of_feast(),
    Route::get("/health", PUBLIC, || get(health::live)),
    Route::get("/feature-views", DECLARED, || get(features::views)),
    Route::get("/feature-views/{feature_view}", DECLARED, || get(features::view)),
    Route::get("/feature-services", DECLARED, || get(features::services)),
    Route::get("/feature-services/{feature_service}", DECLARED, || get(features::service)),
    Route::get("/entities", DECLARED, || get(features::entities)),
    Route::get("/metrics", VIEW, || get(metrics::metrics)).about(Scope::Listed),
    Route::get("/openapi.json", PUBLIC, || get(openapi::document)),
];

/// The router of every table.
pub(super) fn router(app: &App) -> Router {
    let of_parts = app.parts().iter().flat_map(|part| part.routes(app.web()));
    let add = |router: Router, BoundRoute { rule, mut handler }: BoundRoute| {
        debug_assert_eq!(rule.mistake(), None, "{} {}", rule.method, rule.path);
        if rule.is_audited {
            let audited = Audited { app: app.clone(), recorded_as: rule.recorded_as };
            handler = handler.route_layer(from_fn_with_state(audited, administration::audited));
        }
        // Outermost: a caller who is refused does not even learn that the audit log is in trouble.
        if !rule.is_public() {
            handler = handler.route_layer(from_fn_with_state(Guard { app: app.clone(), rule }, guard));
        }
        // Some clients end each path with a slash. It is the same route, not a redirect: a POST would lose its body.
        let router = match rule.with_slash() {
            Some(path) => router.route(&path, handler.clone()),
            None => router,
        };
        router.route(rule.path, handler)
    };
    bind(ROUTES, app).into_iter().chain(of_parts).fold(Router::new(), add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_asks_for_something_and_what_changes_the_box_is_audited() {
        for Route { rule, .. } in ROUTES {
            assert_eq!(rule.mistake(), None, "{}", rule.path);
        }
    }

    #[test]
    fn without_a_credential_there_is_a_sign_of_life_and_the_description() {
        let public: Vec<_> =
            ROUTES.iter().filter(|route| route.rule.is_public()).map(|route| route.rule.path).collect();
        assert_eq!(public, ["/v2/health/live", "/v2/health/ready", "/health", "/openapi.json"]);
    }
}
