{#-
  Reads a copied table at the cut of this invocation of dbt, so that all models read their tables at one position:

      select … from {{ cdc_table('shop.orders') }} as o join {{ cdc_table('shop.order_lines') }} as l using (…)

  The cut comes from the command line: dbt run --vars "$vars". `Cut.dbt_vars` of airflow_provider_cdc makes the value.
-#}
{% macro cdc_table(table) %}
    {%- set cut = var('cdc_cut', none) -%}
    {#- dbt also parses models in commands that need no cut, such as dbt ls. -#}
    {%- if execute and not cut -%}
        {{ exceptions.raise_compiler_error("the variable cdc_cut is missing: pass the result of Cut.dbt_vars() to dbt in --vars") }}
    {%- elif execute and table not in cut['tables'] -%}
        {{ exceptions.raise_compiler_error("the cut of run " ~ cut['run_id'] ~ " has no table " ~ table ~ ", only " ~ cut['tables'] | join(', ')) }}
    {%- endif -%}
    {{- return(cut['tables'][table] if execute else 'cdc_table') -}}
{% endmacro %}
