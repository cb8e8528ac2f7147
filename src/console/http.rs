//! The routes of the console. Those of API keys are in `keys.rs`.

use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use ledge_identity::access::Permission;
use ledge_part::api_error::ApiError;
use ledge_part::route::needs::{PUBLIC, VIEW};
use ledge_part::route::{Route, RouteScope};

use crate::state::ConsoleHttpState;
use crate::{access, egress, findings, models, page, roles};

/// The permissions of which every role has one.
pub(crate) const ANY_ROLE: &[Permission] = &[Permission::View, Permission::Infer, Permission::WriteFeatures];

/// The routes of the console.
pub const ROUTES: &[Route<ConsoleHttpState>] = &[
    Route::get("/", PUBLIC, || get(page::index)),
    Route::get("/console/{file}", PUBLIC, || get(page::file)),
    Route::get("/access", ANY_ROLE, || get(access::access)).caller(),
    Route::get("/roles", ANY_ROLE, || get(roles::roles)),
    Route::get("/models", VIEW, || get(models::models)).scope(RouteScope::Listed),
    Route::get("/findings", VIEW, || get(findings)).scope(RouteScope::Box),
    Route::get("/egress", VIEW, || get(egress::egress)).scope(RouteScope::Box),
];

/// `GET /findings`.
async fn findings(State(console): State<ConsoleHttpState>) -> Result<Response, ApiError> {
    findings::answer(&console.findings, &console.shutdown).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_page_is_public() {
        let public: Vec<_> =
            ROUTES.iter().filter(|route| route.rule.is_public()).map(|route| route.rule.path).collect();
        assert_eq!(public, ["/", "/console/{file}"]);
    }

    #[test]
    fn every_role_may_ask_who_it_is_and_what_roles_may() {
        use ledge_identity::access::Role;
        for path in ["/access", "/roles"] {
            let rule = ROUTES.iter().find(|route| route.rule.path == path).unwrap().rule;
            assert_eq!(rule.roles().collect::<Vec<_>>(), Role::ALL);
        }
    }
}
