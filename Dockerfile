# syntax=docker/dockerfile:1
# One image for api, worker and serve. It runs as nobody in particular on a read-only root file system: what is
# written goes to /data (with SQLite and a folder, and the master key) and to /tmp.
#
#   docker build -t offpeak .
#   docker run --read-only --tmpfs /tmp -v offpeak:/data -p 127.0.0.1:8080:8080 --stop-timeout 20 offpeak
#
# `docker stop` waits 10 s, less than listen.stop_delay (5 s) and worker.drain (8 s) together, unless --stop-timeout says more.

# A tag may be moved to another image; a digest names one for good (docs/operations.md, "Images and packages"):
#   docker build --build-arg NODE_IMAGE=node:26-slim@sha256:… -t offpeak .
ARG NODE_IMAGE=node:26-slim

FROM ${NODE_IMAGE} AS build
WORKDIR /build
COPY package.json package-lock.json ./
# No package needs a script of its own here: the compiler comes as a package for the platform.
RUN --mount=type=cache,target=/root/.npm npm ci --ignore-scripts --no-audit --no-fund
COPY tsconfig.json build.ts ./
COPY src src
RUN npm run build

FROM ${NODE_IMAGE} AS packages
WORKDIR /app
COPY package.json package-lock.json ./
RUN --mount=type=cache,target=/root/.npm npm ci --omit=dev --ignore-scripts --no-audit --no-fund

FROM ${NODE_IMAGE}
LABEL org.opencontainers.image.title="offpeak" \
      org.opencontainers.image.description="A self-hosted, batch-only LLM inference service" \
      org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /app
COPY --from=packages /app/node_modules node_modules
COPY --from=build /build/dist dist
COPY package.json LICENSE ./
COPY bin bin
COPY docs/offpeak.schema.json docs/
RUN ln -s /app/bin/offpeak.js /usr/local/bin/offpeak \
 && chmod 755 /app/bin/offpeak.js \
 && install -d -o 1000 -g 1000 -m 0700 /data
# Defaults of the image: flags, variables and the configuration file set others. `::` is every address, IPv4 included.
ENV NODE_ENV=production \
    OFFPEAK_DEFAULT_DATA_DIR=/data \
    OFFPEAK_DEFAULT_LISTEN_HOST=::
# A number, so that an orchestrator can see that it is not root.
USER 1000:1000
VOLUME /data
# 9464: metrics of api and worker, not to be published.
EXPOSE 8080 9464
# 8080 answers for serve and api, 9464 for a worker.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["node", "-e", "\
  const ready = (port) => fetch(`http://localhost:${port}/readyz`).then((r) => r.ok); \
  ready(8080).catch(() => ready(9464)).then((ok) => process.exit(ok ? 0 : 1), () => process.exit(1))"]
# Node is the process that is told to stop, and drains; it starts its worker itself and waits for it.
ENTRYPOINT ["node", "/app/bin/offpeak.js"]
CMD ["serve"]
