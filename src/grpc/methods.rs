//! The state of every method, and its caller.

use std::sync::Arc;

use axum::extract::Request;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_identity::access::CallerAccess;
use ledge_models::serving::Serving;
use ledge_part::access;
use ledge_part::api_error::{ApiError, StatusCode};
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::RouteRule;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;

/// The state of every method. Clones share it.
#[derive(Debug, Clone)]
pub struct GrpcMethodsState(Arc<MethodState>);

#[derive(Debug)]
struct MethodState {
    serving: Serving,
    readiness: Arc<Readiness>,
    shutdown: Shutdown,
    context: HandlerContext,
}

/// A caller that the guard has let in, and the rule that it came by.
#[derive(Debug, Clone)]
pub struct AdmittedCaller {
    pub principal: Principal,
    pub access: CallerAccess,
    rule: RouteRule,
}

impl AdmittedCaller {
    /// The caller of a method that is not public.
    pub fn of(request: &Request) -> Result<Self, ApiError> {
        let extensions = request.extensions();
        let found = || {
            let principal = extensions.get::<Principal>()?.clone();
            Some(Self { principal, access: extensions.get::<CallerAccess>()?.clone(), rule: *extensions.get()? })
        };
        found().ok_or_else(|| ApiError::new(StatusCode::UNAUTHORIZED, "authentication required"))
    }
}

impl GrpcMethodsState {
    pub fn new(serving: Serving, readiness: Arc<Readiness>, shutdown: Shutdown, context: HandlerContext) -> Self {
        Self(Arc::new(MethodState { serving, readiness, shutdown, context }))
    }

    pub fn serving(&self) -> &Serving {
        &self.0.serving
    }

    pub fn context(&self) -> &HandlerContext {
        &self.0.context
    }

    pub fn shutdown(&self) -> &Shutdown {
        &self.0.shutdown
    }

    pub fn is_ready(&self) -> bool {
        self.serving().is_ready(&self.0.readiness)
    }

    /// Refuses a model that is not one of the caller's.
    pub fn check_model(&self, caller: &AdmittedCaller, model: &ModelName) -> Result<(), ApiError> {
        if caller.access.has_model(model) {
            return Ok(());
        }
        Err(access::outside_scope(self.serving().audit(), &caller.rule, &caller.principal, &caller.access))
    }
}
