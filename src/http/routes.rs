//! The routes of this crate, and the router of all routes, those of parts included.
//!
//! The router is made of tables, so a route without a permission does not exist. `openapi.json` describes the same
//! routes, and tests compare the two.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, put};
use ledge_part::route::needs::{
    INFER, OPERATE, PUBLIC, READ_FEATURES, VIEW, VIEW_OR_INFER, VIEW_OR_PUSH, WRITE_FEATURES,
};
use ledge_part::route::{BoundRoute, Route, RouteRule, RouteScope, bind};

use super::administration::{self, AuditedRoute};
use super::guard::{RouteGuard, guard};
use super::{App, document_intelligence, features, health, infer, metrics, models, openai, openapi, vision};

/// The routes of this crate.
pub const ROUTES: &[Route<App>] = &[
    Route::get("/v2", VIEW_OR_INFER, || get(health::server_metadata)),
    Route::get("/v2/health/live", PUBLIC, || get(health::live)),
    Route::get("/v2/health/ready", PUBLIC, || get(health::ready)),
    Route::get("/v2/models/stats", VIEW, || get(models::all_statistics)).scope(RouteScope::Listed),
    Route::get("/v2/models/{model}", VIEW_OR_INFER, || get(models::metadata)).scope(RouteScope::Model),
    Route::get("/v2/models/{model}/ready", VIEW_OR_INFER, || get(models::ready)).scope(RouteScope::Model),
    Route::get("/v2/models/{model}/config", VIEW_OR_INFER, || get(models::config)).scope(RouteScope::Model),
    Route::get("/v2/models/{model}/stats", VIEW, || get(models::statistics)).scope(RouteScope::Model),
    Route::post("/v2/models/{model}/infer", INFER, || post(infer::infer)).scope(RouteScope::Model),
    Route::get("/v2/models/{model}/versions/{version}", VIEW_OR_INFER, || get(models::metadata))
        .scope(RouteScope::Model),
    Route::get("/v2/models/{model}/versions/{version}/ready", VIEW_OR_INFER, || get(models::ready))
        .scope(RouteScope::Model),
    Route::get("/v2/models/{model}/versions/{version}/config", VIEW_OR_INFER, || get(models::config))
        .scope(RouteScope::Model),
    Route::get("/v2/models/{model}/versions/{version}/stats", VIEW, || get(models::statistics))
        .scope(RouteScope::Model),
    Route::post("/v2/models/{model}/versions/{version}/infer", INFER, || post(infer::infer)).scope(RouteScope::Model),
    Route::post("/v2/repository/index", VIEW, || post(models::index)).scope(RouteScope::Listed),
    Route::post("/v2/repository/models/{model}/load", OPERATE, || post(models::load))
        .scope(RouteScope::Model)
        .audited(),
    Route::post("/v2/repository/models/{model}/unload", OPERATE, || post(models::unload))
        .scope(RouteScope::Model)
        .audited(),
    Route::get("/v1/status/ping", PUBLIC, || get(vision::ping)),
    Route::post("/v1/vision/detection", INFER, || post(vision::detection))
        .scope(RouteScope::Configured)
        .deepstack()
        .local_plain(),
    Route::post("/v1/vision/face", INFER, || post(vision::face))
        .scope(RouteScope::Configured)
        .deepstack()
        .local_plain(),
    Route::post("/v1/vision/scene", INFER, || post(vision::scene))
        .scope(RouteScope::Configured)
        .deepstack()
        .local_plain(),
    Route::post("/v1/vision/custom/list", VIEW_OR_INFER, || post(vision::custom_list))
        .scope(RouteScope::Listed)
        .deepstack()
        .local_plain(),
    Route::post("/v1/vision/custom/{model}", INFER, || post(vision::custom))
        .scope(RouteScope::Model)
        .deepstack()
        .local_plain(),
    Route::post("/v1/embeddings", INFER, || post(openai::embeddings))
        .scope(RouteScope::Configured)
        .openai_errors()
        .local_plain(),
    Route::get("/v1/models", VIEW_OR_INFER, || get(openai::models))
        .scope(RouteScope::Listed)
        .openai_errors()
        .local_plain(),
    Route::get("/v1/models/{model}", VIEW_OR_INFER, || get(openai::model))
        .scope(RouteScope::Model)
        .openai_errors()
        .local_plain(),
    Route::post("/documentintelligence/documentModels/{document_model}", INFER, || {
        post(document_intelligence::analyze)
    })
    .scope(RouteScope::Configured)
    .azure_errors()
    .local_plain_on_this_host(),
    Route::get("/documentintelligence/documentModels/{document_model}/analyzeResults/{result}", INFER, || {
        get(document_intelligence::result)
    })
    .azure_errors()
    .local_plain_on_this_host(),
    Route::get("/documentintelligence/documentModels/{document_model}/analyzeResults/{result}/pdf", INFER, || {
        get(document_intelligence::pdf)
    })
    .azure_errors()
    .local_plain_on_this_host(),
    Route::put("/process", INFER, || put(document_intelligence::process))
        .scope(RouteScope::Configured)
        .local_plain_on_this_host(),
    Route::post("/get-online-features", READ_FEATURES, || post(features::get_online_features))
        .scope(RouteScope::Values)
        .feast_errors(),
    Route::post("/push", WRITE_FEATURES, || post(features::push)).scope(RouteScope::Values).feast_errors(),
    Route::post("/write-to-online-store", WRITE_FEATURES, || post(features::write_to_online_store))
        .scope(RouteScope::Values)
        .feast_errors(),
    Route::post("/materialize", WRITE_FEATURES, || post(features::materialize)).feast_errors(),
    Route::post("/materialize-incremental", WRITE_FEATURES, || post(features::materialize)).feast_errors(),
    Route::get("/health", PUBLIC, || get(health::live)),
    Route::get("/feature-views", VIEW_OR_PUSH, || get(features::views)),
    Route::get("/feature-views/{feature_view}", VIEW_OR_PUSH, || get(features::view)),
    Route::get("/feature-services", VIEW_OR_PUSH, || get(features::services)),
    Route::get("/feature-services/{feature_service}", VIEW_OR_PUSH, || get(features::service)),
    Route::get("/entities", VIEW_OR_PUSH, || get(features::entities)),
    Route::get("/metrics", VIEW, || get(metrics::metrics)).scope(RouteScope::Listed),
    Route::get("/openapi.json", PUBLIC, || get(openapi::document)),
];

/// Builds the router of those routes of all tables that are served.
pub(super) fn router(app: &App, is_served: impl Fn(&RouteRule) -> bool) -> Router {
    let of_parts = app.parts().iter().flat_map(|part| part.routes(app.context()));
    let add = |router: Router, BoundRoute { rule, mut handler }: BoundRoute| {
        debug_assert_eq!(rule.mistake(), None, "{} {}", rule.method, rule.path);
        if rule.is_audited {
            let audited = AuditedRoute { app: app.clone(), recorded_as: rule.recorded_as };
            handler = handler.route_layer(from_fn_with_state(audited, administration::audited));
        }
        // Outermost: a caller without permission does not learn that the audit log fails.
        if rule.is_guarded() {
            handler = handler.route_layer(from_fn_with_state(RouteGuard { app: app.clone(), rule }, guard));
        }
        // Some clients end each path with a slash. It is the same route, not a redirect: a POST would lose its body.
        let router = match rule.with_slash() {
            Some(path) => router.route(&path, handler.clone()),
            None => router,
        };
        router.route(rule.path, handler)
    };
    let all = bind(ROUTES, app).into_iter().chain(of_parts);
    all.filter(|route| is_served(&route.rule)).fold(Router::new(), add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_needs_a_permission_and_changes_of_the_box_are_audited() {
        for Route { rule, .. } in ROUTES {
            assert_eq!(rule.mistake(), None, "{}", rule.path);
        }
    }

    #[test]
    fn the_public_routes_are_signs_of_life_and_the_description() {
        let public: Vec<_> =
            ROUTES.iter().filter(|route| route.rule.is_public()).map(|route| route.rule.path).collect();
        assert_eq!(public, ["/v2/health/live", "/v2/health/ready", "/v1/status/ping", "/health", "/openapi.json"]);
    }
}
