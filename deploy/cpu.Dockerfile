# Copus for CPUs: Debian's packages, the libtorch of a wheel, and nothing else. Only what is committed goes in:
#
#   git archive HEAD | docker build -t copus -f deploy/cpu.Dockerfile -
#   docker run --rm -v "$PWD:/work" copus train my.toml
FROM debian:12-slim AS build
WORKDIR /copus
COPY . .
RUN scripts/setup --build && scripts/build && cmake --install build --prefix /opt/copus

FROM debian:12-slim
COPY --from=build /opt/copus /opt/copus
ENV PATH="/opt/copus/bin:$PATH"
WORKDIR /work
ENTRYPOINT ["copus"]
