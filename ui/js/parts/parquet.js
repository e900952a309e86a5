// Reads Parquet files, with hyparquet. This module is loaded when the first one is looked at.
export { parquetMetadataAsync, parquetSchema } from "../lib/hyparquet/metadata.js";
export { parquetRead } from "../lib/hyparquet/read.js";
